"""The gRPC health service: reports whether the server serves, under the empty service name.

The server serves unless the feature gate StopGRPCServiceOnDefrag is open and the member defragments
its database; alarms do not count, as in etcd. The messages of this service are not part of etcd's
contract. Its request has one string in field 1, so that protobuf's StringValue can parse it.
"""

from google.protobuf.wrappers_pb2 import StringValue

from kvorum.api import errors
from kvorum.api.responses import (
    HEALTH_NOT_SERVING,
    HEALTH_SERVICE_UNKNOWN,
    HEALTH_SERVING,
    health_list_response,
)
from kvorum.api.wire import parse_message
from kvorum.member.member import Member
from kvorum.member.waits import Send, Signal, Signalled, Steps
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.results import Result


class HealthService:
    """Serves the calls of Health."""

    def __init__(self, member: Member, *, stops_for_defragmentation: bool) -> None:
        self._member = member
        self._stops = stops_for_defragmentation

    def check(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Answer with the state of a service."""
        return errors.UNKNOWN_HEALTH_SERVICE if _name(payload) else self._state()

    def list(self, _call: int, _caller: Caller, _payload: bytes) -> Result:
        """Answer with the state of every service; the only one has the empty name."""
        return health_list_response("", self._state())

    def watch(self, _caller: Caller, payload: bytes) -> Steps:
        """Send the state of a service, and again after each change."""
        return self._watch(is_known=not _name(payload))

    def _state(self) -> bytes:
        is_stopped = self._stops and self._member.state.backend.is_defragmenting
        return HEALTH_NOT_SERVING if is_stopped else HEALTH_SERVING

    def _watch(self, *, is_known: bool) -> Steps:
        sent = b""
        while True:
            state = self._state() if is_known else HEALTH_SERVICE_UNKNOWN
            if state != sent:
                sent = state
                yield Send(state)
            yield Signalled(Signal.DEFRAGMENTED)


def _name(payload: bytes) -> str:
    return parse_message(StringValue, payload).value
