"""Benchmarks that run Kvorum and etcd alternately in one session, and report ratios."""
