"""Attacks on a server, beside a real etcd: what they cost it, and who else feels them."""
