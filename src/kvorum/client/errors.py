"""The errors that the client raises.

A `CallError` is an error that a server returned. Each error that the API names has a subclass, so
that programs can catch exactly that one. `OutcomeUnknownError` reports a write that may or may not
have taken effect. The client itself raises the others.
"""

from typing import ClassVar

from kvorum.api import errors
from kvorum.api.errors import Code, Status


class KvorumError(Exception):
    """The base of every error of this client."""

    is_of_login = False
    """Whether the client's login failed, rather than the call itself."""


class ClosedError(KvorumError):
    """The client, the watch or the session was closed."""


class DeadlineError(KvorumError, TimeoutError):
    """The timeout expired; a write of keys that may have been sent raises OutcomeUnknownError."""


class UnavailableError(KvorumError, ConnectionError):
    """No endpoint could be reached, or none could serve the call."""


class OutcomeUnknownError(KvorumError):
    """The write was sent, but may or may not have taken effect; `__cause__` is the reason.

    Read the keys that it writes before you send it again.
    """


class ForkedError(KvorumError):
    """A parent process made the client; each child process must make a client of its own."""


class RevisionWentBackError(KvorumError):
    """The store is at an older revision than this client has seen, as after a restore."""

    def __init__(self, seen: int, found: int) -> None:
        super().__init__(
            f"the store is at revision {found}, and was at {seen} before: it was restored from a "
            "backup, or is another store; read everything anew"
        )
        self.seen: int = seen
        self.found: int = found


class MembersBehindError(KvorumError):
    """All members that answered are behind a revision that the client has returned before."""

    def __init__(self, shown: int, found: int) -> None:
        super().__init__(
            "etcdclient: no cluster members have a revision higher than the previously received "
            f"revision: {shown} was shown before, and the answers are of {found}"
        )
        self.shown: int = shown
        self.found: int = found


class WatchCompactedError(KvorumError):
    """Compaction removed the events from `revision` on; the oldest left begin at `compacted`."""

    def __init__(self, revision: int, compacted: int) -> None:
        super().__init__(
            f"events from revision {revision} on are gone, compacted up to {compacted}; read what "
            "there is, and watch from the revision after that"
        )
        self.revision: int = revision
        self.compacted: int = compacted


class WatchCanceledError(KvorumError):
    """The server cancelled the watch, for the reason in the message."""


class WatchLostError(KvorumError):
    """The watch lost its stream, and its user asked it not to resume on another one."""


class LeaseLostError(KvorumError):
    """The lease is no longer kept alive; another client may now hold its locks and keys."""


class SnapshotError(KvorumError):
    """The received snapshot is incomplete or damaged; no file was saved."""


class CallError(KvorumError):
    """An error that the server returned: gRPC's code, and the text that names the error."""

    status: ClassVar[Status | None] = None

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{text} ({code.name})")
        self.code: Code = code
        self.text: str = text


class KeyEmptyError(CallError):
    """The request needs a key and has none."""

    status: ClassVar[Status | None] = errors.EMPTY_KEY


class KeyNotFoundError(CallError):
    """The put keeps the present value or lease, but the key does not exist."""

    status: ClassVar[Status | None] = errors.KEY_NOT_FOUND


class ValueGivenError(CallError):
    """The put has a value although it keeps the present one."""

    status: ClassVar[Status | None] = errors.VALUE_PROVIDED


class LeaseGivenError(CallError):
    """The put has a lease although it keeps the present one."""

    status: ClassVar[Status | None] = errors.LEASE_PROVIDED


class TooManyOperationsError(CallError):
    """A transaction has more operations than the server allows."""

    status: ClassVar[Status | None] = errors.TOO_MANY_OPS


class DuplicateKeyError(CallError):
    """A transaction changes a key twice."""

    status: ClassVar[Status | None] = errors.DUPLICATE_KEY


class InvalidSortError(CallError):
    """The server does not know the requested sort order."""

    status: ClassVar[Status | None] = errors.INVALID_SORT_OPTION


class CompactedError(CallError):
    """The requested revision has been compacted."""

    status: ClassVar[Status | None] = errors.COMPACTED


class FutureRevisionError(CallError):
    """The requested revision does not exist yet."""

    status: ClassVar[Status | None] = errors.FUTURE_REV


class NoSpaceError(CallError):
    """The database has reached its quota; compact, defragment, and disarm the alarm."""

    status: ClassVar[Status | None] = errors.NO_SPACE


class RequestTooLargeError(CallError):
    """The request is longer than the server allows."""

    status: ClassVar[Status | None] = errors.REQUEST_TOO_LARGE


class TooManyRequestsError(CallError):
    """The server is overloaded."""

    status: ClassVar[Status | None] = errors.REQUEST_TOO_MANY_REQUESTS


class CorruptError(CallError):
    """The members of the cluster hold different data."""

    status: ClassVar[Status | None] = errors.CORRUPT


class LeaseNotFoundError(CallError):
    """The lease has ended, or never existed."""

    status: ClassVar[Status | None] = errors.LEASE_NOT_FOUND


class LeaseExistsError(CallError):
    """There is a lease of that id already."""

    status: ClassVar[Status | None] = errors.LEASE_EXIST


class LeaseTooLongError(CallError):
    """The time to live is longer than the server allows."""

    status: ClassVar[Status | None] = errors.LEASE_TTL_TOO_LARGE


class MemberExistsError(CallError):
    """There is a member of that id already."""

    status: ClassVar[Status | None] = errors.MEMBER_EXIST


class PeerUrlExistsError(CallError):
    """A member has that peer URL already."""

    status: ClassVar[Status | None] = errors.PEER_URL_EXIST


class NotEnoughStartedError(CallError):
    """Too few members are started for this change of membership."""

    status: ClassVar[Status | None] = errors.MEMBER_NOT_ENOUGH_STARTED


class MemberUrlsInvalidError(CallError):
    """The URLs of the member are not valid."""

    status: ClassVar[Status | None] = errors.MEMBER_BAD_URLS


class MemberNotFoundError(CallError):
    """There is no such member."""

    status: ClassVar[Status | None] = errors.MEMBER_NOT_FOUND


class NotALearnerError(CallError):
    """The member votes already."""

    status: ClassVar[Status | None] = errors.MEMBER_NOT_LEARNER


class LearnerNotReadyError(CallError):
    """The learner has not caught up with the leader yet."""

    status: ClassVar[Status | None] = errors.LEARNER_NOT_READY


class TooManyLearnersError(CallError):
    """The cluster has as many learners as it allows."""

    status: ClassVar[Status | None] = errors.TOO_MANY_LEARNERS


class ClusterMismatchError(CallError):
    """The member belongs to another cluster."""

    status: ClassVar[Status | None] = errors.CLUSTER_ID_MISMATCH


class UnhealthyError(CallError):
    """Too few members are connected for this change of membership."""

    status: ClassVar[Status | None] = errors.UNHEALTHY


class RootUserMissingError(CallError):
    """Authentication needs a user `root`."""

    status: ClassVar[Status | None] = errors.ROOT_USER_NOT_EXIST


class RootRoleMissingError(CallError):
    """The user `root` needs the role `root`."""

    status: ClassVar[Status | None] = errors.ROOT_ROLE_NOT_EXIST


class UserExistsError(CallError):
    """There is a user of that name already."""

    status: ClassVar[Status | None] = errors.USER_ALREADY_EXIST


class UserEmptyError(CallError):
    """Authentication is enabled, and the call has no user."""

    status: ClassVar[Status | None] = errors.USER_EMPTY


class UserNotFoundError(CallError):
    """There is no such user."""

    status: ClassVar[Status | None] = errors.USER_NOT_FOUND


class RoleExistsError(CallError):
    """There is a role of that name already."""

    status: ClassVar[Status | None] = errors.ROLE_ALREADY_EXIST


class RoleNotFoundError(CallError):
    """There is no such role."""

    status: ClassVar[Status | None] = errors.ROLE_NOT_FOUND


class RoleEmptyError(CallError):
    """A role needs a name."""

    status: ClassVar[Status | None] = errors.ROLE_EMPTY


class LoginFailedError(CallError):
    """The user's name or password is wrong."""

    status: ClassVar[Status | None] = errors.AUTH_FAILED


class PermissionMissingError(CallError):
    """A permission is needed, and none was given."""

    status: ClassVar[Status | None] = errors.PERMISSION_NOT_GIVEN


class PermissionDeniedError(CallError):
    """The user may not do this."""

    status: ClassVar[Status | None] = errors.PERMISSION_DENIED


class RoleNotGrantedError(CallError):
    """The user does not have that role."""

    status: ClassVar[Status | None] = errors.ROLE_NOT_GRANTED


class PermissionNotGrantedError(CallError):
    """The role does not have that permission."""

    status: ClassVar[Status | None] = errors.PERMISSION_NOT_GRANTED


class AuthNotEnabledError(CallError):
    """Authentication is not enabled."""

    status: ClassVar[Status | None] = errors.AUTH_NOT_ENABLED


class InvalidTokenError(CallError):
    """The token is invalid or has expired."""

    status: ClassVar[Status | None] = errors.INVALID_AUTH_TOKEN


class InvalidAuthManagementError(CallError):
    """Users and roles cannot be changed like this."""

    status: ClassVar[Status | None] = errors.INVALID_AUTH_MGMT


class AuthOutdatedError(CallError):
    """Users or roles have changed since the token was made."""

    status: ClassVar[Status | None] = errors.AUTH_OLD_REVISION


class NoLeaderError(CallError):
    """The member knows of no leader."""

    status: ClassVar[Status | None] = errors.NO_LEADER


class NotLeaderError(CallError):
    """The member does not lead."""

    status: ClassVar[Status | None] = errors.NOT_LEADER


class LeaderChangedError(CallError):
    """The leader changed while the call waited."""

    status: ClassVar[Status | None] = errors.LEADER_CHANGED


class NotCapableError(CallError):
    """The cluster's version does not support the request."""

    status: ClassVar[Status | None] = errors.NOT_CAPABLE


class StoppedError(CallError):
    """The member is stopping."""

    status: ClassVar[Status | None] = errors.STOPPED


class TimedOutError(CallError):
    """The cluster did not answer the member in time."""

    status: ClassVar[Status | None] = errors.TIMEOUT


class TimedOutLeaderFailedError(CallError):
    """The cluster did not answer in time, perhaps because its leader failed."""

    status: ClassVar[Status | None] = errors.TIMEOUT_DUE_TO_LEADER_FAIL


class TimedOutConnectionLostError(CallError):
    """The cluster did not answer in time; connections were lost."""

    status: ClassVar[Status | None] = errors.TIMEOUT_DUE_TO_CONNECTION_LOST


class TimedOutApplyingError(CallError):
    """The member did not reach the required applied index in time."""

    status: ClassVar[Status | None] = errors.TIMEOUT_WAIT_APPLIED_INDEX


class TimedOutTransferError(CallError):
    """The leader did not hand over its leadership in time."""

    status: ClassVar[Status | None] = errors.TIMEOUT_LEADER_TRANSFER


class LearnerUnsupportedError(CallError):
    """A learner does not serve this request."""

    status: ClassVar[Status | None] = errors.NOT_SUPPORTED_FOR_LEARNER


class BadTransfereeError(CallError):
    """The member to which leadership should move cannot lead."""

    status: ClassVar[Status | None] = errors.BAD_LEADER_TRANSFEREE


class InvalidClientVersionError(CallError):
    """The server rejects the client's API version."""

    status: ClassVar[Status | None] = errors.INVALID_CLIENT_API_VERSION


class DowngradeFormatError(CallError):
    """The target version of the downgrade is malformed."""

    status: ClassVar[Status | None] = errors.WRONG_DOWNGRADE_VERSION_FORMAT


class DowngradeTargetError(CallError):
    """The cluster cannot be downgraded to that version."""

    status: ClassVar[Status | None] = errors.INVALID_DOWNGRADE_TARGET_VERSION


class DowngradeUnavailableError(CallError):
    """The cluster has not decided on its version yet."""

    status: ClassVar[Status | None] = errors.CLUSTER_VERSION_UNAVAILABLE


class DowngradeRunningError(CallError):
    """The cluster is being downgraded already."""

    status: ClassVar[Status | None] = errors.DOWNGRADE_IN_PROCESS


class NoDowngradeError(CallError):
    """There is no downgrade to cancel."""

    status: ClassVar[Status | None] = errors.NO_INFLIGHT_DOWNGRADE


class ElectionNotLeaderError(CallError):
    """The candidate is not the leader, or no longer."""

    status: ClassVar[Status | None] = errors.ELECTION_NOT_LEADER


class ElectionNoLeaderError(CallError):
    """The election has no leader."""

    status: ClassVar[Status | None] = errors.ELECTION_NO_LEADER


class SessionExpiredError(CallError):
    """The session's lease ended while the caller waited."""

    status: ClassVar[Status | None] = errors.SESSION_EXPIRED


_BY_TEXT: dict[str, type[CallError]] = {
    kind.status.text: kind for kind in CallError.__subclasses__() if kind.status is not None
}


def error_of(code: int, text: str) -> CallError:
    """Return the exception for the code and text of a server's answer."""
    kind = _BY_TEXT.get(text)
    if kind is not None:
        assert kind.status is not None
        return kind(kind.status.code, text)
    return CallError(Code(code) if 0 <= code <= Code.UNAUTHENTICATED else Code.UNKNOWN, text)
