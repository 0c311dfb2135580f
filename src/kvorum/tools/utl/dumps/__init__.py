"""`dump`: show databases, logs, snapshots and metrics, as text and as lines of JSON.

The text is that of etcd-dump-db, etcd-dump-logs and etcd-dump-metrics. Dumps only read files, piece
by piece, whatever their size. A dump never shows a password, the hash of one, or a user's token.
"""
