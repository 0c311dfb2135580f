"""Probes, which ask members whether they serve."""

from collections.abc import Callable
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import PutRequest, RangeRequest
from kvorum.sim.calls import METHODS, Calls
from kvorum.sim.world import World

PROBE_SECONDS = 0.5
PROBE_GAP_SECONDS = 0.05


class Probe:
    """Sends a put and a get of a key to one member until both succeed."""

    def __init__(self, world: World, calls: Calls, member: int) -> None:
        self._world = world
        self._calls = calls
        self.member = member
        self.is_done = False
        self.last = "no answer"
        self._attempt = 0

    def start(self) -> None:
        """Send the put."""
        self._attempt += 1
        key = b"probe/%d" % self.member
        value = b"%d.%.6f" % (self.member, self._world.now)
        self._ask(PutRequest(key=key, value=value), self._read)

    def _read(self, _response: Any) -> None:
        key = b"probe/%d" % self.member
        self._ask(RangeRequest(key=key), self._finish)

    def _finish(self, response: Any) -> None:
        if response.kvs:
            self.is_done = True
        else:
            self.last = "a key is missing that was just put"

    def _ask(self, request: Any, then: Callable[[Any], None]) -> None:
        attempt = self._attempt
        path, response = METHODS[type(request)]

        def answered(result: bytes | Status | None) -> None:
            if attempt != self._attempt or self.is_done:
                return
            if isinstance(result, bytes):
                then(response.FromString(result))
            else:
                self.last = "connection lost" if result is None else result.text
                self._attempt += 1
                # Not all at once: where next to nothing may be uncommitted, the probes would make
                # the leader drop each other's proposals forever.
                seconds = PROBE_SECONDS + PROBE_GAP_SECONDS * (self.member % 10)
                self._world.after(seconds, self.start)

        self._calls.call(self.member, path, request.SerializeToString(), answered)
