"""What is wrong with a cluster or a data directory: how sure that is, and what to do next.

An examination takes what somebody gathered, or files that it only reads, and returns findings. It
asks nobody, prints nothing and changes nothing.
"""
