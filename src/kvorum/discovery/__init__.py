"""How members that do not know each other find out who founds a cluster with them."""
