"""Proxies between clients and the cluster: production's, in processes of the simulator's."""
