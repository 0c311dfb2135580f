"""`kvorumctl`: etcdctl's commands for a cluster, and more."""
