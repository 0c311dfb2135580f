"""`kvorumutl`: works on files of members that do not run, as etcd's `etcdutl` does.

`main` knows the command line; every other module is one thing it can do. Nothing here changes a
file it was only told to read, and what it makes is under its final name whole or not at all.
"""
