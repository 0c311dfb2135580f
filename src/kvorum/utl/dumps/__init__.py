"""`dump`: what is in databases, logs, snapshots and on pages of metrics, as text and JSON lines.

The text is that of etcd-dump-db, etcd-dump-logs and etcd-dump-metrics. Files are only read, piece
by piece, whatever their size. No password, hash of one, or token of a user is ever shown.
"""
