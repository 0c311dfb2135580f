"""`kvorumutl`: works on files of members that do not run, as etcd's `etcdutl` does.

`main` has the command line; every other module is one thing it can do. Files that are only read are
never changed, and what is made appears under its final name complete or not at all.
"""
