"""Alarms: the states in which a cluster refuses requests until an operator steps in.

An alarm is a member and a type, raised and cleared through the log, so that all members refuse
alike. NOSPACE refuses requests that need more space. CORRUPT refuses all requests that go through
the log and touch keys or leases, and takes precedence over NOSPACE. Other types have no effect.
A row of bucket `alarm` has the AlarmMember as its key and no value.
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from kvorum.api.errors import CORRUPT, NO_SPACE, Status
from kvorum.api.pb.etcdserverpb import AlarmMember
from kvorum.state.apply.requests import (
    COMPACTION,
    DELETE_RANGE,
    LEASE_GRANT,
    LEASE_REVOKE,
    PUT,
    RANGE,
    TXN,
)
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.buckets import ALARM


class AlarmType:
    """The types of alarms, numbered as on the wire; requests may name others."""

    NONE: Final = 0
    NO_SPACE: Final = 1
    CORRUPT: Final = 2


_NAMES = {AlarmType.NO_SPACE: "NOSPACE", AlarmType.CORRUPT: "CORRUPT"}

# A transaction needs space if it has a put.
_NEED_SPACE = frozenset({PUT, LEASE_GRANT})
_TOUCH_STATE = frozenset({RANGE, PUT, DELETE_RANGE, TXN, COMPACTION, LEASE_GRANT, LEASE_REVOKE})


class AlarmRowError(Exception):
    """A row of bucket `alarm` cannot be read: the storage is damaged."""


class MemberAlarm(NamedTuple):
    """An alarm of a member; member 0 means no member in particular."""

    type: int
    member_id: int

    @property
    def type_name(self) -> str:
        """The name of its type on the wire."""
        return _NAMES.get(self.type, str(self.type))

    def __str__(self) -> str:
        name = f"alarm:{self.type_name}"
        return f"memberID:{self.member_id} {name}" if self.member_id else name


class Alarms:
    """The set of raised alarms."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._raised: set[MemberAlarm] = set()

    def restore(self) -> None:
        """Read the alarms from the storage."""
        self._raised = {_alarm(key) for key, _ in self._backend.items(ALARM)}

    def activate(self, member_id: int, alarm_type: int) -> list[MemberAlarm]:
        """Raise an alarm, if it is not raised; return it, or nothing for the type NONE."""
        if alarm_type == AlarmType.NONE:
            return []
        alarm = MemberAlarm(alarm_type, member_id)
        if alarm not in self._raised:
            self._raised.add(alarm)
            self._backend.put(ALARM, _row(alarm), b"")
        return [alarm]

    def deactivate(self, member_id: int, alarm_type: int) -> list[MemberAlarm]:
        """Clear exactly this alarm; return it, or nothing if it was not raised."""
        alarm = MemberAlarm(alarm_type, member_id)
        if alarm not in self._raised:
            return []
        self._raised.remove(alarm)
        self._backend.delete(ALARM, _row(alarm))
        return [alarm]

    def is_raised(self, member_id: int, alarm_type: int) -> bool:
        """Return whether exactly this alarm is raised."""
        return MemberAlarm(alarm_type, member_id) in self._raised

    def raised(self, alarm_type: int = AlarmType.NONE) -> list[MemberAlarm]:
        """Return the alarms of a type, or all of them, in order of type and member."""
        wanted = sorted(self._raised)
        if alarm_type == AlarmType.NONE:
            return wanted
        return [alarm for alarm in wanted if alarm.type == alarm_type]

    def refusal(self, kind: int, *, has_puts: bool = False) -> Status | None:
        """Return the error with which an alarm refuses to apply a request; None if it may run.

        `kind` is the request's field number in InternalRaftRequest; `has_puts` says whether a
        transaction has a put in any branch, executed or not.
        """
        if not self._raised:
            return None
        types = {alarm.type for alarm in self._raised}
        if AlarmType.CORRUPT in types and kind in _TOUCH_STATE:
            return CORRUPT
        needs_space = kind in _NEED_SPACE or (kind == TXN and has_puts)
        return NO_SPACE if AlarmType.NO_SPACE in types and needs_space else None


def _row(alarm: MemberAlarm) -> bytes:
    message = AlarmMember(memberID=alarm.member_id, alarm=alarm.type)  # type: ignore[arg-type]
    return message.SerializeToString()


def _alarm(row: bytes) -> MemberAlarm:
    try:
        message = AlarmMember.FromString(row)
    except DecodeError as error:
        raise AlarmRowError(
            f"bucket alarm, row {row.hex()}: {error}. The storage is damaged: replace this "
            f"member, or restore the cluster from a snapshot."
        ) from error
    return MemberAlarm(message.alarm, message.memberID)
