"""The one table of errors: the codes and texts with which the API refuses, to the letter.

Clients recognise an error by its text as well as its code, so both are part of the contract. A row
is plain data; code that has to unwind raises it as `StatusError`. Rows whose text holds a value are
functions.
"""

from enum import IntEnum
from typing import NamedTuple


class Code(IntEnum):
    """The gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Status(NamedTuple):
    """The result of a call: its gRPC status code and text."""

    code: Code
    text: str

    def wrapped(self) -> str:
        """Return the text as Go prints a gRPC error; a watch's cancel reason carries it."""
        name = "Canceled" if self.code is Code.CANCELLED else self.code.name.title()
        return f"rpc error: code = {name.replace('_', '')} desc = {self.text}"


class StatusError(Exception):
    """A call that cannot continue, with the status for its client."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.wrapped())
        self.status = status


# Keys and values.
EMPTY_KEY = Status(Code.INVALID_ARGUMENT, "etcdserver: key is not provided")
KEY_NOT_FOUND = Status(Code.INVALID_ARGUMENT, "etcdserver: key not found")
VALUE_PROVIDED = Status(Code.INVALID_ARGUMENT, "etcdserver: value is provided")
LEASE_PROVIDED = Status(Code.INVALID_ARGUMENT, "etcdserver: lease is provided")
TOO_MANY_OPS = Status(Code.INVALID_ARGUMENT, "etcdserver: too many operations in txn request")
DUPLICATE_KEY = Status(Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request")
INVALID_SORT_OPTION = Status(Code.INVALID_ARGUMENT, "etcdserver: invalid sort option")
COMPACTED = Status(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
FUTURE_REV = Status(Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
NO_SPACE = Status(Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
REQUEST_TOO_LARGE = Status(Code.INVALID_ARGUMENT, "etcdserver: request is too large")
# Meant as RESOURCE_EXHAUSTED; etcd sends UNKNOWN, and clients go by the text.
REQUEST_TOO_MANY_REQUESTS = Status(Code.UNKNOWN, "etcdserver: too many requests")
CORRUPT = Status(Code.DATA_LOSS, "etcdserver: corrupt cluster")
RANGE_STREAM_SORTED = Status(Code.UNIMPLEMENTED, "RangeStream does not support custom sort orders")
RANGE_STREAM_FILTERED = Status(Code.UNIMPLEMENTED, "RangeStream does not support revision filters")

# Leases.
LEASE_NOT_FOUND = Status(Code.NOT_FOUND, "etcdserver: requested lease not found")
LEASE_EXIST = Status(Code.FAILED_PRECONDITION, "etcdserver: lease already exists")
LEASE_TTL_TOO_LARGE = Status(Code.OUT_OF_RANGE, "etcdserver: too large lease TTL")
NOT_PRIMARY_LESSOR = Status(Code.UNKNOWN, "not a primary lessor")

# Watches. The last two are cancel reasons; they end a watcher, not the call.
WATCH_CANCELED = Status(Code.CANCELLED, "etcdserver: watch canceled")
WATCH_RANGE_EMPTY = Status(Code.UNKNOWN, "mvcc: watcher range is empty")
WATCH_ID_DUPLICATE = Status(Code.UNKNOWN, "mvcc: duplicate watch ID provided on the WatchStream")

# Membership.
MEMBER_EXIST = Status(Code.FAILED_PRECONDITION, "etcdserver: member ID already exist")
PEER_URL_EXIST = Status(Code.FAILED_PRECONDITION, "etcdserver: Peer URLs already exists")
# Meant as FAILED_PRECONDITION; etcd sends UNKNOWN, and clients go by the text.
MEMBER_NOT_ENOUGH_STARTED = Status(
    Code.UNKNOWN, "etcdserver: re-configuration failed due to not enough started members"
)
MEMBER_BAD_URLS = Status(Code.INVALID_ARGUMENT, "etcdserver: given member URLs are invalid")
MEMBER_NOT_FOUND = Status(Code.NOT_FOUND, "etcdserver: member not found")
MEMBER_NOT_LEARNER = Status(
    Code.FAILED_PRECONDITION, "etcdserver: can only promote a learner member"
)
LEARNER_NOT_READY = Status(
    Code.FAILED_PRECONDITION,
    "etcdserver: can only promote a learner member which is in sync with leader",
)
TOO_MANY_LEARNERS = Status(
    Code.FAILED_PRECONDITION, "etcdserver: too many learner members in cluster"
)
CLUSTER_ID_MISMATCH = Status(Code.FAILED_PRECONDITION, "etcdserver: cluster ID mismatch")
UNHEALTHY = Status(Code.UNAVAILABLE, "etcdserver: unhealthy cluster")

# Authentication and permissions.
ROOT_USER_NOT_EXIST = Status(Code.FAILED_PRECONDITION, "etcdserver: root user does not exist")
ROOT_ROLE_NOT_EXIST = Status(
    Code.FAILED_PRECONDITION, "etcdserver: root user does not have root role"
)
USER_ALREADY_EXIST = Status(Code.FAILED_PRECONDITION, "etcdserver: user name already exists")
USER_EMPTY = Status(Code.INVALID_ARGUMENT, "etcdserver: user name is empty")
USER_NOT_FOUND = Status(Code.FAILED_PRECONDITION, "etcdserver: user name not found")
ROLE_ALREADY_EXIST = Status(Code.FAILED_PRECONDITION, "etcdserver: role name already exists")
ROLE_NOT_FOUND = Status(Code.FAILED_PRECONDITION, "etcdserver: role name not found")
ROLE_EMPTY = Status(Code.INVALID_ARGUMENT, "etcdserver: role name is empty")
AUTH_FAILED = Status(
    Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password"
)
PERMISSION_NOT_GIVEN = Status(Code.INVALID_ARGUMENT, "etcdserver: permission not given")
PERMISSION_DENIED = Status(Code.PERMISSION_DENIED, "etcdserver: permission denied")
ROLE_NOT_GRANTED = Status(Code.FAILED_PRECONDITION, "etcdserver: role is not granted to the user")
PERMISSION_NOT_GRANTED = Status(
    Code.FAILED_PRECONDITION, "etcdserver: permission is not granted to the role"
)
AUTH_NOT_ENABLED = Status(Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled")
INVALID_AUTH_TOKEN = Status(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")
INVALID_AUTH_MGMT = Status(Code.INVALID_ARGUMENT, "etcdserver: invalid auth management")
AUTH_OLD_REVISION = Status(Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old")
NO_PASSWORD_USER = Status(
    Code.UNKNOWN, "auth: authentication failed, password was given for no password user"
)
TOKEN_VERIFY_ONLY = Status(Code.UNKNOWN, "auth: token signing attempted with verify-only key")
PASSWORD_TOO_LONG = Status(Code.UNKNOWN, "bcrypt: password length exceeds 72 bytes")

# State of the cluster and of the request.
NO_LEADER = Status(Code.UNAVAILABLE, "etcdserver: no leader")
NOT_LEADER = Status(Code.FAILED_PRECONDITION, "etcdserver: not leader")
LEADER_CHANGED = Status(Code.UNAVAILABLE, "etcdserver: leader changed")
NOT_CAPABLE = Status(Code.FAILED_PRECONDITION, "etcdserver: not capable")
STOPPED = Status(Code.UNAVAILABLE, "etcdserver: server stopped")
TIMEOUT = Status(Code.UNAVAILABLE, "etcdserver: request timed out")
TIMEOUT_DUE_TO_LEADER_FAIL = Status(
    Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"
)
TIMEOUT_DUE_TO_CONNECTION_LOST = Status(
    Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to connection lost"
)
TIMEOUT_WAIT_APPLIED_INDEX = Status(
    Code.UNAVAILABLE, "etcdserver: request timed out, waiting for the applied index took too long"
)
TIMEOUT_LEADER_TRANSFER = Status(
    Code.UNKNOWN, "etcdserver: request timed out, leader transfer took too long"
)
NOT_SUPPORTED_FOR_LEARNER = Status(
    Code.FAILED_PRECONDITION, "etcdserver: rpc not supported for learner"
)
BAD_LEADER_TRANSFEREE = Status(Code.FAILED_PRECONDITION, "etcdserver: bad leader transferee")
INVALID_CLIENT_API_VERSION = Status(Code.INVALID_ARGUMENT, "etcdserver: invalid client api version")
CANCELED = Status(Code.CANCELLED, "etcdserver: request canceled")
DEADLINE_EXCEEDED = Status(Code.DEADLINE_EXCEEDED, "etcdserver: context deadline exceeded")
PROPOSAL_DROPPED = Status(Code.UNKNOWN, "raft proposal dropped")
RAFT_STOPPED = Status(Code.UNKNOWN, "raft: stopped")

# Downgrades.
WRONG_DOWNGRADE_VERSION_FORMAT = Status(
    Code.INVALID_ARGUMENT, "etcdserver: wrong downgrade target version format"
)
INVALID_DOWNGRADE_TARGET_VERSION = Status(
    Code.INVALID_ARGUMENT, "etcdserver: invalid downgrade target version"
)
CLUSTER_VERSION_UNAVAILABLE = Status(
    Code.FAILED_PRECONDITION, "etcdserver: cluster version not found during downgrade"
)
DOWNGRADE_IN_PROCESS = Status(
    Code.FAILED_PRECONDITION, "etcdserver: cluster has a downgrade job in progress"
)
NO_INFLIGHT_DOWNGRADE = Status(Code.FAILED_PRECONDITION, "etcdserver: no inflight downgrade job")
UNKNOWN_DOWNGRADE_ACTION = Status(Code.UNKNOWN, "etcdserver: unknown method")

# Election and Lock: every error of these two services leaves as UNKNOWN.
LEADER_FIELD_MISSING = Status(Code.UNKNOWN, '"leader" field must be provided')
ELECTION_NOT_LEADER = Status(Code.UNKNOWN, "election: not leader")
ELECTION_NO_LEADER = Status(Code.UNKNOWN, "election: no leader")
SESSION_EXPIRED = Status(Code.UNKNOWN, "mutex: session is expired")
WATCHER_LOST = Status(Code.UNKNOWN, "lost watcher waiting for delete")

# Statuses of the gRPC server itself.
CONTEXT_CANCELED = Status(Code.CANCELLED, "context canceled")
CONTEXT_DEADLINE_EXCEEDED = Status(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
UNKNOWN_HEALTH_SERVICE = Status(Code.NOT_FOUND, "unknown service")
INTERNAL = Status(Code.INTERNAL, "internal error: the server could not serve this request")
NO_REQUEST = Status(
    Code.INTERNAL,
    "cardinality violation: received no request message from non-client-streaming RPC",
)


def quoted(text: str) -> str:
    """Quote a text as Go's %q does, for the characters that headers can hold."""
    import json

    return json.dumps(text, ensure_ascii=False)


def malformed_method(path: str) -> Status:
    """Return the status for a path that is not of the form /service/method."""
    return Status(Code.UNIMPLEMENTED, f"malformed method name: {quoted(path)}")


def unknown_service(service: str) -> Status:
    """Return the status for a service that the server does not have."""
    return Status(Code.UNIMPLEMENTED, f"unknown service {service}")


def unknown_method(service: str, method: str) -> Status:
    """Return the status for a method that the service does not have."""
    return Status(Code.UNIMPLEMENTED, f"unknown method {method} for service {service}")


def defragmentation_failed(reason: str) -> Status:
    """Return the status for a failed defragmentation, which leaves the database unchanged."""
    return Status(Code.UNKNOWN, f"defragmentation failed: {reason}")


def excessive_urls(excess: str) -> Status:
    """Return the status for a request that gives a member too many URLs, with the limit."""
    return Status(MEMBER_BAD_URLS.code, f"{MEMBER_BAD_URLS.text}: {excess}")


def unparsable_request(reason: str) -> Status:
    """Return the status for a request whose bytes are not a message of the expected type."""
    return Status(Code.INTERNAL, f"grpc: error unmarshalling request: {reason}")


def unparsable_message(reason: str) -> Status:
    """Return the status for a message of a stream that is not of the expected type."""
    return Status(Code.INTERNAL, f"grpc: failed to unmarshal the received message: {reason}")


def message_too_large(size: int, limit: int) -> Status:
    """Return the status for a request above the server's size limit."""
    return Status(
        Code.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})"
    )


def unknown_compression(encoding: str) -> Status:
    """Return the status for a request compressed other than with identity or gzip."""
    return Status(
        Code.UNIMPLEMENTED,
        f"grpc: Decompressor is not installed for grpc-encoding {quoted(encoding)}",
    )
