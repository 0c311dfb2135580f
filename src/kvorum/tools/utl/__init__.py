"""`kvorumutl`: work on files of stopped members, as etcd's `etcdutl` does.

`main` has the command line; every other module implements one command. Commands that only read
files never change them, and results appear under their final names complete or not at all.
"""
