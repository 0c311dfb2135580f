"""The disk: the file seam, the write-ahead log, snapshot files and the database."""
