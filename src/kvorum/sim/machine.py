"""One machine of the cluster: its disk, its databases, and the process that runs there.

The production server runs here as in a real process: its turns take the arrivals, and the simulator
carries its outputs. The only difference is that the seed decides when. A crash may end the process
at any point: before a turn, between two outputs of a turn, before, after or between two calls of a
job to the disk, or during the start. Whether the process is killed or the power fails decides which
writes the disk keeps. A signal lets the process end cleanly, and a process ends by itself when its
member was removed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf
from random import Random
from typing import Any

from kvorum.member.config import MemberConfig, Seams
from kvorum.member.errors import MemberStopped, StartRefused
from kvorum.member.jobs import JobLostError
from kvorum.member.member import Member
from kvorum.member.recovery import open_member
from kvorum.network.edge import native_skim
from kvorum.network.edge.interface import Event, Request
from kvorum.process.settings.checks import make_config
from kvorum.raft.messages import Message
from kvorum.raft.tracker import Configuration
from kvorum.server.jobs import JobOrder
from kvorum.server.peer.cluster.joining import Start
from kvorum.server.server import Server
from kvorum.server.settings import server_settings
from kvorum.server.shutdown import ServerPhase
from kvorum.sim.arrivals import Arrivals
from kvorum.sim.disk import Disk, ProcessEnd, is_caused_by
from kvorum.sim.edge import SimulatedEdge
from kvorum.sim.entering import Entrance
from kvorum.sim.executor import SimulatedExecutor
from kvorum.sim.faults import Faults
from kvorum.sim.gateway_checks import check_gateway
from kvorum.sim.links import PEER_LISTENER
from kvorum.sim.logs import CollectedLogs
from kvorum.sim.moments import Kind
from kvorum.sim.standstill import Standstill
from kvorum.sim.surroundings import Cluster, MachinePeers
from kvorum.sim.violation import Violation
from kvorum.sim.world import World
from kvorum.state.auth.tokens import SimpleTokens
from kvorum.state.membership.bootstrap import ClusterSettingsError
from kvorum.state.membership.documents import MemberDocument as Peer
from kvorum.state.mvcc.hashes import HashKV, HashRows
from kvorum.storage.files.memory import MemoryFiles
from kvorum.storage.wal import exists as log_exists

UNIX_SECONDS = 1_700_000_000.0
CLOCK_JUMP = (-7200.0, 7200.0)
_AMID_CALLS_MAX = 40
_AMID_OUTPUTS_MAX = 20
_SLACK_TICKS = 0.25
"""The ticks by which a turn may be late, so that one turn may do the work of two."""
_SLACK_ELECTIONS = 0.05
"""The same in election timeouts, lest followers take a leader with slow ticks for lost."""
ANSWERED = "every call is answered or ended"
_NOWHERE = Start(None, ())
"""The start of a process with a log: the log says where to start."""
_TURNS_AT_ONCE_MAX = 1000
"""Turns at one moment; more of them are a loop without progress."""
_SETTINGS = server_settings(make_config({}))


class Machine:
    """A disk that persists, and a process that starts and ends."""

    __slots__ = (
        "_alarm_at",
        "_busy_until",
        "_clock_now",
        "_cluster",
        "_due_at",
        "_entrance",
        "_in_turn",
        "_incarnation",
        "_is_woken",
        "_jobs",
        "_last_turn",
        "_outputs_left",
        "_pace",
        "_phase_seconds",
        "_random",
        "_slack_seconds",
        "_stalled_until",
        "_standstill",
        "_started_at",
        "_turn_at",
        "_turns_now",
        "_world",
        "arrivals",
        "config",
        "crashes",
        "deaf_until",
        "disk",
        "edge",
        "executor",
        "faults",
        "has_left",
        "helpers_lost",
        "initial_start",
        "is_dead",
        "is_ending",
        "is_existing",
        "is_retired",
        "is_wiped",
        "known",
        "led_at_the_end",
        "logs",
        "member",
        "name",
        "number",
        "peers",
        "seen_committed",
        "seen_configuration",
        "seen_configured",
        "seen_revision",
        "seen_term",
        "server",
        "snapshots_sent",
        "starts",
        "stops",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        number: int,
        config: MemberConfig,
        faults: Faults,
        directory: str,
    ) -> None:
        self.number = number
        self.name = f"m{number}"
        self.config = config
        self.faults = faults
        self.edge = SimulatedEdge(world, self, faults)
        self.logs = CollectedLogs(world, self.name)
        self.member: Member | None = None
        self.server: Server | None = None
        self.arrivals = Arrivals(self)
        self.peers: MachinePeers
        # Where a process without a log starts, and whether its flags say that its cluster exists.
        self.initial_start = _NOWHERE
        self.is_existing = False
        self.known: Sequence[Peer] = ()
        # The machine has lost its disk, and must not come back as the same member.
        self.is_wiped = False
        self.is_dead = True
        # Abandoned for good.
        self.is_retired = False
        # The process was asked to end cleanly.
        self.is_ending = False
        # The process ended because its member was removed.
        self.has_left = False
        # Whether its member led when its process last ended cleanly.
        self.led_at_the_end = False
        self._standstill = Standstill(world)
        self.deaf_until = 0.0
        self.seen_revision = self.seen_term = self.seen_committed = self.seen_configured = 0
        self.seen_configuration: Configuration | None = None
        self.crashes = 0
        self.starts = 0
        self.stops = 0
        # How often its helper process died.
        self.helpers_lost = 0
        self.snapshots_sent = 0
        self._world = world
        self._cluster = cluster
        # Asks other members where a process without a log belongs; None otherwise.
        self._entrance: Entrance | None = None
        self._random: Random = world.stream(self.name)
        self.disk = Disk(world.stream(f"{self.name}/disk"), directory, config.directory, self.line)
        # Some clusters are mixed with etcd, and need images in etcd's format.
        self.disk.takes_copies = world.stream(f"{self.name}/copies").random() < 0.7
        self.disk.environments.takes_copies = self.disk.takes_copies
        self._stalled_until = 0.0
        self._slack_seconds = 0.0
        self._incarnation = 0
        self._jobs: JobOrder
        self.executor: SimulatedExecutor
        # Turns that nothing wakes start at this offset in a grid of slacks.
        self._phase_seconds = 0.0
        # Whether something woke the process, and when that turn begins; None: no turn is planned.
        self._is_woken = False
        self._turn_at: float | None = None
        # When a turn is due although nothing happens, and when the alarm checks for that.
        self._due_at = inf
        self._alarm_at = inf
        self._last_turn = 0.0
        self._turns_now = 0
        self._clock_now = 0.0
        self._in_turn = False
        self._busy_until = 0.0
        self._started_at = UNIX_SECONDS
        # How far the process's clock advances in a second.
        self._pace = 1.0
        # Outputs that are left until the process ends; None: it does not end.
        self._outputs_left: int | None = None

    @property
    def files(self) -> MemoryFiles:
        """The current files on its disk."""
        return self.disk.files

    def line(self, what: str, kind: Kind | None = None, seconds: float = 0.0) -> None:
        """Add a line to the trace; with a kind, pictures show it as well."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what, kind, seconds)

    # The life of a process.

    def start(self) -> None:
        """Start the process with the contents of the disk; the process may crash at once."""
        assert self.is_dead
        self.is_dead = False
        self._incarnation += 1
        self.starts += 1
        self.executor = SimulatedExecutor(self._world, self, self._random)
        self._jobs = JobOrder(self.executor)
        self._is_woken = self._in_turn = False
        self._turn_at = None
        self._due_at = self._alarm_at = inf
        self.disk.power_on()
        self.line("start", Kind.START)
        self._slack_seconds = min(
            _SLACK_TICKS * self.config.heartbeat_seconds,
            _SLACK_ELECTIONS * self.config.election_seconds,
        )
        self._phase_seconds = self._random.random() * self._slack_seconds
        # The clock is never faster than the clients', by which checks judge the ends of leases.
        self._pace = 1.0 - self._random.uniform(0.0, self.faults.clock_drift)
        self.run_guarded(self._enter)

    def _enter(self) -> None:
        """Continue from the log; without one, find this member's place in the cluster."""
        if log_exists(self.files, f"{self.config.directory}/wal"):
            self._open(_NOWHERE)
            return
        entrance = self.peers.enter()
        if entrance is None:
            self._open(self.initial_start)
        else:
            self._entrance = entrance
            self._find_start()

    def _find_start(self) -> None:
        entrance = self._entrance
        assert entrance is not None
        try:
            found = entrance.advance(self.now)
        except ClusterSettingsError as error:
            self.line(f"refused: {error}", Kind.REFUSED)
            self._die(power_cut=False)
            self._cluster.note_refusal(self, error)
            return
        if isinstance(found, float):
            self._world.at(
                max(self._world.now, found / self._pace + 1e-6), self._enter_on, self._incarnation
            )
            return
        self._entrance = None
        if self._cluster.admits(self, found, entrance):
            self._open(found)
        else:
            self._die(power_cut=False)

    def _enter_on(self, incarnation: int) -> None:
        """Continue to look for a place in the cluster: answers may have arrived."""
        if incarnation != self._incarnation or self._entrance is None:
            return
        if not self.later(self._enter_on, incarnation):
            self.run_guarded(self._find_start)

    def _open(self, start: Start) -> None:
        seams = Seams(
            files=self.files,
            environments=self.disk.environments,
            logger=self.logs,
            clock=self._clock,
            boot_clock=lambda: max(self.now, self._clock_now),
            random_below=self._random.randrange,
            unix_seconds=self._time_of_day(),
            wall_clock=lambda: UNIX_SECONDS + self._world.now,
            tokens=SimpleTokens(self._cluster.token_seconds),
            skim=native_skim(),
        )
        self.known = start.known
        joins = None if start.joined is None else start.joined[:2]
        drift = self._random.uniform(-self.faults.tick_drift, self.faults.tick_drift)
        heartbeat_seconds = self.config.heartbeat_seconds * (1 + drift)
        config = replace(self.config, joins=joins, heartbeat_seconds=heartbeat_seconds)
        self.member = member = open_member(config, seams)
        self.peers.begin(member)
        self.server = Server(member, self.edge, self.peers, self.logs, _SETTINGS)
        self.edge.open()
        self.server.peer_listeners.add(PEER_LISTENER)
        self.seen_revision = self.seen_term = self.seen_committed = self.seen_configured = 0
        self.seen_configuration = None
        self.line(
            f"up applied {member.state.applied} revision {member.state.store.revision}", Kind.UP
        )
        self._cluster.note_turn(self)
        # Machines do not tick at the same moments.
        self._wait_until(self._world.now + self._random.random() * heartbeat_seconds)

    def _time_of_day(self) -> float:
        """Return the time of day at a start, which may have jumped."""
        random = self._random
        if random.random() < self.faults.clock_jump_chance:
            # Or the time of the last start: ids made from it must differ all the same.
            now = UNIX_SECONDS + self._world.now + random.uniform(*CLOCK_JUMP)
            self._started_at = random.choice([now, self._started_at])
        else:
            self._started_at = UNIX_SECONDS + self._world.now
        return self._started_at

    @property
    def peer_urls(self) -> tuple[str, ...]:
        """The URLs at which peers reach this machine."""
        return (f"http://{self.name}:2380",)

    def crash(self, *, power_cut: bool) -> None:
        """End the process now; jobs under way are done, not done, or half done."""
        if self.is_dead:
            return
        if self._entrance is None:
            self.executor.interrupt()
        self._die(power_cut=power_cut)

    def crash_amid(self) -> None:
        """End the process soon, between two calls to the disk or two outputs."""
        if self.is_dead:
            return
        if self._random.random() < 0.6:
            self.disk.cut_off_after(self._random.randint(0, _AMID_CALLS_MAX))
        else:
            self._outputs_left = self._random.randint(0, _AMID_OUTPUTS_MAX)

    def cut_off_outputs(self) -> None:
        """End the process before its next output."""
        self._outputs_left = 0

    def terminate(self) -> None:
        """Ask the process to end cleanly, as a signal does."""
        if self.server is not None and not self.is_ending:
            self.is_ending = True
            self._drain(self._incarnation)

    def _drain(self, incarnation: int) -> None:
        server = self.server
        if incarnation != self._incarnation or self.later(self._drain, incarnation):
            return
        assert server is not None
        self.line("terminated", Kind.TERMINATED)
        self.run_guarded(server.drain, self.now)
        if not self.is_dead:
            self.request_turn()

    def _exit(self, member: Member) -> None:
        """Record that the process ended cleanly, on a signal or because its member was removed."""
        self.led_at_the_end = member.is_leader
        self.has_left = member.was_removed
        self.line("ended", Kind.ENDED)
        self.executor.stop()
        self._die(power_cut=False)

    def _die(self, *, power_cut: bool) -> None:
        self.is_dead = True
        self.is_ending = False
        self.crashes += 1
        self._incarnation += 1
        self._outputs_left = None
        if power_cut:
            self.line("power cut", Kind.POWER_CUT)
        else:
            self.line("killed", Kind.KILLED)
        self.executor.abandon()
        self.member = None
        self.server = None
        self._entrance = None
        self.arrivals.forget()
        self._standstill.until = self.deaf_until = 0.0
        self.disk.power_off(power_cut=power_cut)
        self.edge.crash()
        self.peers.crash(power_cut=power_cut)

    def _loses_power(self) -> bool:
        return self._random.random() < self.faults.power_cut_chance

    def run_guarded(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run code of the member; a crash ends the process, an unexplained error is a violation."""
        try:
            call(*arguments)
        except ProcessEnd:
            self._die(power_cut=self._loses_power())
        except Violation:
            raise
        except StartRefused as error:
            if self.member is None or not self.member.was_removed:
                raise Violation("the member serves", f"{self.name} raised {error!r}") from error
            self.line(f"refused: {error}", Kind.REFUSED)
            self._exit(self.member)
        except Exception as error:
            if self.disk.is_cut_off:
                self._die(power_cut=self._loses_power())
            elif self._is_explained(error) or self._cluster.accounts_for(error):
                self._stop(error)
            elif isinstance(error, MemberStopped):
                raise Violation("the member serves", f"{self.name} stopped: {error!r}") from error
            else:
                raise Violation("the member serves", f"{self.name} raised {error!r}") from error

    def _is_explained(self, error: Exception) -> bool:
        """Return whether a disk fault, or the death of its helper, explains an error."""
        return self.disk.explains(error) or (
            self.helpers_lost > 0 and is_caused_by(error, JobLostError)
        )

    def _stop(self, error: Exception) -> None:
        """End the process of a member that could not go on; the cluster decides what follows."""
        self.stops += 1
        self.line(f"stopped: {error}", Kind.STOPPED)
        self.executor.stop()
        self._die(power_cut=self._random.random() < 0.5)
        self._cluster.note_stop(self)

    def wipe(self) -> None:
        """Cut the machine's power, and replace its disk with an empty one."""
        self.crash(power_cut=True)
        self.line("disk lost", Kind.DISK_LOST)
        self.is_wiped = True
        self.disk.wipe()

    def end(self) -> None:
        """End the process for good, and remove its files."""
        if not self.is_dead:
            self.executor.abandon()
        self.is_dead = self.is_retired = True
        self._incarnation += 1
        self.member = self.server = self._entrance = None
        self.edge.crash()
        self.disk.close()

    def hash_kv(self) -> tuple[int, int, int]:
        """Return the member's own hash of its keys: value, revision, compacted revision."""
        member = self.member
        assert member is not None
        job = member.state.store.hash_kv(0)
        if isinstance(job, HashKV):
            return job
        try:
            return job.run(self.files, self.disk.environments), job.revision, job.compact_revision
        finally:
            member.state.store.finish_hash(job)

    def disarm(self) -> None:
        """Cancel all planned crashes and stalls; a pause lasts as long as it was meant to."""
        self._outputs_left = None
        self.disk.relieve()
        if not self.is_dead:
            self.executor.relieve()
        self._stalled_until = 0.0

    def pause(self, seconds: float) -> None:
        """Pause the process for a while."""
        if not self.is_dead:
            self.line(f"paused for {seconds:.3f}", Kind.PAUSED, seconds)
            self._standstill.pause_for(seconds)
            # Peers closed their connections during the pause, so requests of clients come first.
            self.deaf_until = self.paused_until + self._random.uniform(0.0, 0.5)

    def stall(self, seconds: float) -> None:
        """Stall the disk for a while: jobs that start meanwhile end after the stall."""
        if not self.is_dead:
            self.line(f"disk stalls for {seconds:.3f}", Kind.DISK_STALLED, seconds)
        self._stalled_until = self._world.now + seconds

    def later(self, call: Callable[..., None], *arguments: object) -> bool:
        """Defer a call while the process is paused; return whether it was deferred."""
        return self._standstill.later(call, *arguments)

    @property
    def paused_until(self) -> float:
        """When the pause ends, if the process is paused."""
        return self._standstill.until

    # Turns.

    def _clock(self) -> float:
        if self._in_turn:
            self._clock_now += 2 * self._random.random() * self.faults.clock_step
            return self._clock_now
        return max(self.now, self._clock_now)

    @property
    def now(self) -> float:
        """The time by the clock of the process."""
        return self._world.now * self._pace

    def request_turn(self) -> None:
        """Schedule a turn soon, unless one is scheduled already."""
        if self._is_woken:
            return
        self._is_woken = True
        least, most = self.faults.wake_delay
        delay = least + self._random.random() * (most - least)
        self._turn_at = moment = max(self._world.now + delay, self._busy_until)
        self._world.at(moment, self._turn, self._incarnation, moment)

    def _wait_until(self, moment: float) -> None:
        """Schedule a turn at a moment, if nothing wakes the process before."""
        # Everything that is due at about the same time shares one turn.
        slack, phase = self._slack_seconds, self._phase_seconds
        # The turn is never early, however the moment is rounded.
        moment = max(moment, phase + ceil((moment - phase) / slack) * slack)
        self._due_at = moment = max(moment, self._busy_until, self._world.now)
        # An earlier alarm stays; when it fires, it is set again.
        if moment < self._alarm_at:
            self._alarm_at = moment
            self._world.at(moment, self._alarm, self._incarnation, moment)

    def _alarm(self, incarnation: int, moment: float) -> None:
        if incarnation != self._incarnation or moment != self._alarm_at:
            return
        if self.later(self._alarm, incarnation, moment):
            return
        self._alarm_at = inf
        if self._due_at > self._world.now:
            self._wait_until(self._due_at)
        else:
            self._begin_turn(moment)

    def _turn(self, incarnation: int, moment: float) -> None:
        if incarnation != self._incarnation or moment != self._turn_at:
            return
        if not self.later(self._turn, incarnation, moment):
            self._begin_turn(moment)

    def _begin_turn(self, moment: float) -> None:
        self._is_woken = False
        self._turn_at = None
        self._turns_now = self._turns_now + 1 if moment == self._last_turn else 0
        self._last_turn = moment
        if self._turns_now > _TURNS_AT_ONCE_MAX:
            raise Violation("turns get somewhere", f"{self.name} is woken at {moment} for nothing")
        self.run_guarded(self._run_turn)

    def _run_turn(self) -> None:
        server, jobs, now = self.server, self._jobs, self.now
        assert server is not None
        self._clock_now = max(now, self._clock_now)
        least, most = self.faults.turn_budget
        server.turn_seconds = least + self._random.random() * (most - least)
        requests: list[Request] = []
        events: list[Event] = []
        if min(server.room) > 0:
            requests, events = self.arrivals.take()
            events += self.peers.take_events()
        self._in_turn = True
        server.turn(now, requests, events, self.peers.poll(), jobs.take_ended())
        while started := server.take_jobs():
            jobs.submit(started, server.inline_bytes_max)
            ended = jobs.take_ended()
            if not ended:
                break
            server.resume_turn(now, ended)
        self._in_turn = False
        # The clock passed during the turn, which keeps the process busy until then.
        self._busy_until = self._clock_now / self._pace
        self._cluster.note_turn(self)
        self._check_calls(server)
        check_gateway(self.name, now, server, self.edge, self.arrivals)
        if server.phase is ServerPhase.ENDED:
            self._exit(server.member)
        elif server.is_busy:
            self.request_turn()
        else:
            moment = server.wake_at(now)
            # In the world's time, and not before the process's clock shows that moment.
            self._wait_until(moment if self._pace == 1.0 else moment / self._pace + 1e-6)

    def _check_calls(self, server: Server) -> None:
        """Require that the server knows every unary call whose client waits for an answer."""
        if not self.edge.unary:
            return
        known, waiting = server.calls.unary, self.arrivals.calls()
        for call in self.edge.unary:
            if call not in known and call not in waiting:
                raise Violation(ANSWERED, f"{self.name} has forgotten call {call}")

    def note_sent(self, message: Message) -> None:
        """Pass a raft message that leaves the process to the cluster's checks."""
        self._cluster.note_sent(self.number, message)

    def check_before_output(self) -> None:
        """Check the member amid its turn, before its outputs leave."""
        self._cluster.note_turn(self)

    def output(self) -> None:
        """Let one more output leave the process, or end the process instead."""
        if self._outputs_left is not None:
            self._outputs_left -= 1
            if self._outputs_left < 0:
                self.line("cut off between outputs", Kind.CUT_OFF)
                raise ProcessEnd

    def force_campaign(self) -> None:
        """Make a member campaign as if its election timer had run out, unless it leads."""
        member = self.member
        if member is None or self.paused_until > self._world.now or member.is_leader:
            return
        self.run_guarded(member.replica.node.campaign)
        if not self.is_dead:
            self.request_turn()

    def note_peer_events(self) -> None:
        """Request a turn, or continue to look for a place: something arrived from a member."""
        if self._entrance is not None:
            self._enter_on(self._incarnation)
        elif not self.is_dead:
            self.request_turn()

    @property
    def stalled_seconds(self) -> float:
        """How long the disk's stall still lasts."""
        return max(0.0, self._stalled_until - self._world.now)

    def note_hash(self, work: HashRows, result: Any) -> None:
        """Pass a hash that a job made of the rows to the cluster's checks."""
        self._cluster.note_hash(self, work, result)

    @property
    def incarnation(self) -> int:
        """A number that changes with every start and every end of the process."""
        return self._incarnation
