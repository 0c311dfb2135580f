"""The gRPC health service: the server as a whole, under the empty name, is serving.

Its messages are not part of etcd's contract. A request holds a string in field 1, which is what
protobuf's own StringValue holds.
"""

from google.protobuf.wrappers_pb2 import StringValue

from kvorum.api import errors
from kvorum.api.responses import HEALTH_SERVICE_UNKNOWN, HEALTH_SERVING, health_list_response
from kvorum.api.wire import parse_message
from kvorum.member.callers import Caller
from kvorum.member.outbox import Result
from kvorum.member.waits import Send, Steps, Until


class Health:
    """Answers at once: the answers do not depend on the member."""

    def check(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Answer with the state of a service."""
        return errors.UNKNOWN_HEALTH_SERVICE if _name(payload) else HEALTH_SERVING

    def list(self, _call: int, _caller: Caller, _payload: bytes) -> Result:
        """Answer with the state of every service: of the one with the empty name."""
        return health_list_response("", HEALTH_SERVING)

    def watch(self, _caller: Caller, payload: bytes) -> Steps:
        """Send the state of a service, and keep the stream open: the state does not change."""
        return _watch(HEALTH_SERVICE_UNKNOWN if _name(payload) else HEALTH_SERVING)


def _name(payload: bytes) -> str:
    return parse_message(StringValue, payload).value


def _watch(state: bytes) -> Steps:
    yield Send(state)
    while True:
        yield Until(float("inf"))
