"""A simulated cluster that does what a test says, one step after the other, in virtual time.

Requests are recorded as in a run of the simulator, so that a test may end with `judge`, which
checks all answers: by the history, by order, by linearizability, by leases.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RangeResponse,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.api.pb.mvccpb import Event
from kvorum.sim import checks
from kvorum.sim.calls import Caller, PlannedRequest
from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import without_faults
from kvorum.sim.history import Record
from kvorum.sim.lease_checks import check_leases
from kvorum.sim.machine import Machine
from kvorum.sim.probes import Probe
from kvorum.sim.watchers import PATH
from kvorum.sim.world import World

PATIENCE_SECONDS = 8.0
SEGMENT_BYTES = 65536


class Watch:
    """A watch, and everything it received."""

    def __init__(self, stage: "Stage", member: int, request: WatchCreateRequest) -> None:
        self._stage = stage
        self.member = member
        self.responses: list[WatchResponse] = []
        self.call = stage.cluster.open_stream(member, PATH, self._ended, self._received)
        self._send(WatchRequest(create_request=request))

    def _ended(self, _result: object) -> None:
        pass

    def _received(self, data: bytes) -> None:
        self.responses.append(WatchResponse.FromString(data))

    def _send(self, request: WatchRequest) -> None:
        self._stage.cluster.send(self.member, self.call, request.SerializeToString())

    def ask_for_progress(self) -> None:
        self._send(WatchRequest(progress_request=WatchProgressRequest()))

    @property
    def events(self) -> list[Event]:
        return [event for response in self.responses for event in response.events]

    @property
    def revisions(self) -> list[int]:
        return [event.kv.mod_revision for event in self.events]

    def wait(self, count: int) -> None:
        """Wait for so many events in all."""
        self._stage.run_until(lambda: len(self.events) >= count)


class Stage:
    """Members numbered from 1, and a client for each."""

    def __init__(
        self,
        directory: Path,
        members: int = 3,
        seed: int = 0,
        *,
        frames: bool = False,
        **options: object,
    ) -> None:
        """With `frames`, members speak the peer protocol over connections."""
        self.world = World(seed)
        options = {"segment_bytes": SEGMENT_BYTES, "election_ticks": 4, **options}
        faults = replace(without_faults(), frames=frames)
        self.cluster = Cluster(self.world, members, faults, str(directory), options)
        self._callers: list[Caller] = []
        self.cluster.start()
        self.serve()

    # Time.

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def run_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        reached = self.world.run_while(lambda: not condition(), self.world.now + seconds)
        assert reached, f"not within {seconds} virtual seconds"

    # Requests.

    def begin(self, request: Any, member: int = 1, patience: float = PATIENCE_SECONDS) -> Record:
        """Send a request, and do not wait; its record has the answer once there is one."""
        number = len(self._callers) + 1
        caller = Caller(self.world, self.cluster, self.cluster.history, number, f"c{number}")
        self._callers.append(caller)
        caller.member = member
        is_current = not (isinstance(request, RangeRequest) and request.serializable)
        asked = PlannedRequest("asked", request, (), is_current)
        return caller.ask(asked, patience, lambda _: None)

    def answer(self, request: Any, member: int = 1) -> Any:
        """Return the answer to a request: a response, a Status, or None if it got lost."""
        record = self.begin(request, member)
        self.run_until(lambda: record.finished > 0)
        return record.response

    def ask(self, request: Any, member: int = 1) -> Any:
        """Return the response to a request, which must not fail."""
        response = self.answer(request, member)
        assert response is not None and not isinstance(response, Status), response
        return response

    def put(self, key: bytes, value: bytes, member: int = 1, lease: int = 0) -> int:
        """Put a key; return the revision."""
        request = PutRequest(key=key, value=value, lease=lease)
        revision: int = self.ask(request, member).header.revision
        return revision

    def delete(self, key: bytes, member: int = 1) -> int:
        revision: int = self.ask(DeleteRangeRequest(key=key), member).header.revision
        return revision

    def compact(self, revision: int, member: int = 1) -> None:
        self.ask(CompactionRequest(revision=revision, physical=True), member)

    def begin_compaction(self, revision: int) -> Record:
        return self.begin(CompactionRequest(revision=revision, physical=True))

    def answer_or_stop(self, member: int = 1) -> None:
        """Read everything; the member may find that its disk is damaged, and stop."""
        machine = self.machine(member)
        record = self.begin(RangeRequest(key=b"\0", range_end=b"\0"), member)
        self.run_until(lambda: record.finished > 0 or machine.is_dead)

    def everything(self, member: int = 1) -> RangeResponse:
        response: RangeResponse = self.ask(RangeRequest(key=b"\0", range_end=b"\0"), member)
        return response

    def watch(self, key: bytes, end: bytes = b"", start: int = 0, member: int = 1) -> Watch:
        request = WatchCreateRequest(key=key, range_end=end, start_revision=start, prev_kv=True)
        watch = Watch(self, member, request)
        self.run_until(lambda: bool(watch.responses))
        return watch

    # Members.

    def machine(self, member: int = 1) -> Machine:
        return self.cluster.machines[member]

    def serve(self, members: Sequence[int] | None = None) -> None:
        """Wait until members serve."""
        probes = [Probe(self.world, self.cluster, each) for each in members or self.cluster.members]
        for probe in probes:
            probe.start()
        self.run_until(lambda: all(probe.is_done for probe in probes))

    @property
    def leader(self) -> int:
        leading = [
            machine
            for machine in self.cluster.machines.values()
            if machine.member is not None and machine.member.is_leader
        ]
        return max(leading, key=lambda machine: machine.seen_term).number

    def followers(self) -> list[int]:
        leader = self.leader
        return [each for each in self.cluster.members if each != leader]

    def isolate(self, member: int) -> None:
        others = [each for each in self.cluster.members if each != member]
        self.cluster.network.divide([member], others)

    def heal(self) -> None:
        self.cluster.network.heal()

    def restart(self, member: int = 1, *, power_cut: bool = True) -> None:
        machine = self.machine(member)
        machine.crash(power_cut=power_cut)
        machine.disarm()
        machine.start()

    def agree(self) -> None:
        """Wait until all members have applied the same, and require equal hashes."""
        members = [self.machine(each).member for each in self.cluster.members]
        self.run_until(
            lambda: len({each.state.applied if each is not None else 0 for each in members}) == 1
        )
        hashes = {self.machine(each).hash_kv() for each in self.cluster.members}
        assert len(hashes) == 1, hashes

    def judge(self) -> None:
        """Check all answers."""
        history = self.cluster.history
        history.replay()
        checks.check_answers(history)
        checks.check_order(history)
        checks.check_linearizable(history)
        check_leases(history)

    def close(self) -> None:
        for machine in self.cluster.machines.values():
            machine.end()
