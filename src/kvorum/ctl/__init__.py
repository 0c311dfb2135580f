"""`kvorumctl`: a cluster at the command line, as etcdctl has it, and more."""
