"""The names of etcd's buckets, and of single entries in them."""

ALARM = b"alarm"
AUTH = b"auth"
AUTH_ROLES = b"authRoles"
AUTH_USERS = b"authUsers"
CLUSTER = b"cluster"
KEY = b"key"
LEASE = b"lease"
MEMBERS = b"members"
MEMBERS_REMOVED = b"members_removed"
META = b"meta"

# In the order of their names, because hashes visit the buckets in this order.
BUCKETS = (
    ALARM,
    AUTH,
    AUTH_ROLES,
    AUTH_USERS,
    CLUSTER,
    KEY,
    LEASE,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
)

# Bucket `meta`. Only the backend writes the index and term of the last applied entry.
CONSISTENT_INDEX = b"consistent_index"
TERM = b"term"
CONF_STATE = b"confState"
STORAGE_VERSION = b"storageVersion"
SCHEDULED_COMPACT_REVISION = b"scheduledCompactRev"
FINISHED_COMPACT_REVISION = b"finishedCompactRev"

# Bucket `cluster`.
CLUSTER_VERSION = b"clusterVersion"
DOWNGRADE = b"downgrade"

# Bucket `auth`.
AUTH_ENABLED = b"authEnabled"
AUTH_REVISION = b"authRevision"
