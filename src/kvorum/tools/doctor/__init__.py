"""Diagnose clusters and data directories: what is wrong, how sure that is, and what to do next.

An examination takes gathered observations, or files that it only reads, and returns findings. It
sends no requests, prints nothing and changes nothing.
"""
