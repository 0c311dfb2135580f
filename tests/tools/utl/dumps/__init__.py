"""`kvorumutl dump`, beside etcd's own dump tools where `make oracle` built them."""
