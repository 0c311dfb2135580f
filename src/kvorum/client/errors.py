"""Every error a call can end with, by name.

`CallError` and its kinds are what a server answered: a kind for each error that the API names, so
that a program catches what it means. `OutcomeUnknownError` is a write that may have taken effect or
not. The rest is the client's own.
"""

from typing import ClassVar

from kvorum.api import errors
from kvorum.api.errors import Code, Status


class KvorumError(Exception):
    """The base of every error of this client."""

    is_of_login = False
    """Whether it is the login that failed, before any call."""


class ClosedError(KvorumError):
    """The client, the watch or the session was closed."""


class DeadlineError(KvorumError, TimeoutError):
    """The call's time was over; if it was a write, it had not been sent."""


class UnavailableError(KvorumError, ConnectionError):
    """No endpoint could be reached, or none could serve the call."""


class OutcomeUnknownError(KvorumError):
    """The write was sent, and nobody can say whether it took effect; `__cause__` says why.

    Read what it should have changed before it is sent again.
    """


class ForkedError(KvorumError):
    """The client was made by a parent of this process; a child needs one of its own."""


class RevisionWentBackError(KvorumError):
    """The store is older than what this client has seen: it was restored from a backup."""

    def __init__(self, seen: int, found: int) -> None:
        super().__init__(
            f"the store is at revision {found}, and was at {seen} before: it was restored from a "
            "backup, or is another store; read everything anew"
        )
        self.seen: int = seen
        self.found: int = found


class MembersBehindError(KvorumError):
    """All members that answered are behind what was shown before."""

    def __init__(self, shown: int, found: int) -> None:
        super().__init__(
            "etcdclient: no cluster members have a revision higher than the previously received "
            f"revision: {shown} was shown before, and the answers are of {found}"
        )
        self.shown: int = shown
        self.found: int = found


class WatchCompactedError(KvorumError):
    """The events from `revision` on are gone; the oldest that are left begin at `compacted`."""

    def __init__(self, revision: int, compacted: int) -> None:
        super().__init__(
            f"events from revision {revision} on are gone, compacted up to {compacted}; read what "
            "there is, and watch from the revision after that"
        )
        self.revision: int = revision
        self.compacted: int = compacted


class WatchCanceledError(KvorumError):
    """The server has ended the watch, for the reason given."""


class WatchLostError(KvorumError):
    """The watch lost its stream, and was not to be resumed on another one."""


class LeaseLostError(KvorumError):
    """The lease is not kept alive any more; whatever it held may be another's now."""


class SnapshotError(KvorumError):
    """What came is not a whole snapshot; nothing was saved."""


class CallError(KvorumError):
    """What the server answered: gRPC's code, and the text that names the error."""

    status: ClassVar[Status | None] = None

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(f"{text} ({code.name})")
        self.code: Code = code
        self.text: str = text


class KeyEmptyError(CallError):
    """A key is needed, and none was given."""

    status: ClassVar[Status | None] = errors.EMPTY_KEY


class KeyNotFoundError(CallError):
    """The key does not exist whose value or lease was to be kept."""

    status: ClassVar[Status | None] = errors.KEY_NOT_FOUND


class ValueGivenError(CallError):
    """A value was given although the present one was to be kept."""

    status: ClassVar[Status | None] = errors.VALUE_PROVIDED


class LeaseGivenError(CallError):
    """A lease was given although the present one was to be kept."""

    status: ClassVar[Status | None] = errors.LEASE_PROVIDED


class TooManyOperationsError(CallError):
    """A transaction has more operations than the server allows."""

    status: ClassVar[Status | None] = errors.TOO_MANY_OPS


class DuplicateKeyError(CallError):
    """A transaction changes a key twice."""

    status: ClassVar[Status | None] = errors.DUPLICATE_KEY


class InvalidSortError(CallError):
    """The server does not know the order that was asked for."""

    status: ClassVar[Status | None] = errors.INVALID_SORT_OPTION


class CompactedError(CallError):
    """The revision that was asked for has been compacted."""

    status: ClassVar[Status | None] = errors.COMPACTED


class FutureRevisionError(CallError):
    """The revision that was asked for does not exist yet."""

    status: ClassVar[Status | None] = errors.FUTURE_REV


class NoSpaceError(CallError):
    """The database has reached its quota; compact, defragment, and disarm the alarm."""

    status: ClassVar[Status | None] = errors.NO_SPACE


class RequestTooLargeError(CallError):
    """The request is longer than the server allows."""

    status: ClassVar[Status | None] = errors.REQUEST_TOO_LARGE


class TooManyRequestsError(CallError):
    """The server has more to do than it can take on."""

    status: ClassVar[Status | None] = errors.REQUEST_TOO_MANY_REQUESTS


class CorruptError(CallError):
    """The members of the cluster hold different data."""

    status: ClassVar[Status | None] = errors.CORRUPT


class LeaseNotFoundError(CallError):
    """The lease has ended, or never was."""

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
    """The token is not valid, or not any more."""

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
    """The cluster's version does not have this."""

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
    """The member was too slow to apply what it had to apply first."""

    status: ClassVar[Status | None] = errors.TIMEOUT_WAIT_APPLIED_INDEX


class TimedOutTransferError(CallError):
    """The leadership was not handed over in time."""

    status: ClassVar[Status | None] = errors.TIMEOUT_LEADER_TRANSFER


class LearnerUnsupportedError(CallError):
    """A learner does not serve this."""

    status: ClassVar[Status | None] = errors.NOT_SUPPORTED_FOR_LEARNER


class BadTransfereeError(CallError):
    """The member cannot lead."""

    status: ClassVar[Status | None] = errors.BAD_LEADER_TRANSFEREE


class InvalidClientVersionError(CallError):
    """The server does not like the client's version."""

    status: ClassVar[Status | None] = errors.INVALID_CLIENT_API_VERSION


class DowngradeFormatError(CallError):
    """The version to downgrade to is not written as one."""

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
    """The candidate does not lead, or not any more."""

    status: ClassVar[Status | None] = errors.ELECTION_NOT_LEADER


class ElectionNoLeaderError(CallError):
    """Nobody leads this election."""

    status: ClassVar[Status | None] = errors.ELECTION_NO_LEADER


class SessionExpiredError(CallError):
    """The session's lease ended while it waited."""

    status: ClassVar[Status | None] = errors.SESSION_EXPIRED


_BY_TEXT: dict[str, type[CallError]] = {
    kind.status.text: kind for kind in CallError.__subclasses__() if kind.status is not None
}


def error_of(code: int, text: str) -> CallError:
    """Return the error that a server's answer names."""
    kind = _BY_TEXT.get(text)
    if kind is not None:
        assert kind.status is not None
        return kind(kind.status.code, text)
    return CallError(Code(code) if 0 <= code <= Code.UNAUTHENTICATED else Code.UNKNOWN, text)
