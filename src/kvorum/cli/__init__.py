"""Command lines as users of etcd's tools know them: flags, help, errors, formats of output."""
