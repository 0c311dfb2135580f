"""The replicated state: keys and watchers, leases, users and roles, membership."""
