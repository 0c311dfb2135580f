"""Read, check and create the data directories and snapshots of stopped members."""
