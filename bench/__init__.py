"""Benchmarks: Kvorum beside etcd, in one run, in alternation, as ratios."""
