"""Production's proxies between clients and the cluster, in simulated processes."""
