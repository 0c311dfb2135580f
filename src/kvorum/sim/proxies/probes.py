"""Probe proxies: whether they serve, and which members they list."""

from typing import Any

from kvorum.api.pb.etcdserverpb import MemberListRequest
from kvorum.sim.calls import Calls
from kvorum.sim.probes import Probe
from kvorum.sim.violation import Violation
from kvorum.sim.world import World

GUARANTEE = "status and members are told as they are"


class ProxyProbe(Probe):
    """Probes one proxy until it serves, then checks its member list, which may name the proxy."""

    def __init__(self, world: World, calls: Calls, proxy: int, advertised: str) -> None:
        super().__init__(world, calls, proxy)
        self._advertised = advertised

    def _finish(self, response: Any) -> None:
        if response.kvs:
            self._ask(MemberListRequest(), self._take_members)
        else:
            super()._finish(response)

    def _take_members(self, response: Any) -> None:
        told = [url for member in response.members for url in member.clientURLs]
        # A member that has not published its URLs yet is listed without any.
        if not response.members or (self._advertised and told != [self._advertised]):
            raise Violation(
                GUARANTEE,
                f"m{self.member} says that the members are at {told}, and is itself to be asked "
                f"at {self._advertised or 'no other address'}",
            )
        self.is_done = True
