"""One machine of the cluster: its disk, its databases, and the process that runs there.

The production member runs here as in the server: what arrives is handed in, turns are run, and
what it has to say is taken out. The only difference is who decides when. Jobs are the production
functions, run at a moment of the seed's choice. A crash takes the process at any point: before
a turn, between two outputs of a turn, before, after or between two calls of a job to the disk,
or during the start. Whether a process dies or the power goes decides what is left of the disk.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from math import inf
from random import Random
from typing import Any

from kvorum.api.errors import Code, Status
from kvorum.backend.errors import BackendError
from kvorum.edge.interface import Event, EventKind, Request
from kvorum.files.memory import MemoryFiles
from kvorum.member.config import MemberConfig, Seams
from kvorum.member.errors import MemberStopped
from kvorum.member.jobs import Job, Place
from kvorum.member.member import Member
from kvorum.member.recovery import open_member
from kvorum.membership.bootstrap import BootstrapError
from kvorum.membership.documents import Member as Peer
from kvorum.mvcc.hashes import HashKV, HashRows
from kvorum.peer.cluster.joining import Start
from kvorum.raft.tracker import Configuration
from kvorum.wal import exists as log_exists
from sim.disk import Disk, ProcessEnd
from sim.edge import Answered, SimulatedEdge
from sim.entering import Entrance
from sim.faults import Faults
from sim.logs import CollectedLogs
from sim.surroundings import Cluster, Front, Peers
from sim.violation import Violation
from sim.world import World

UNIX_SECONDS = 1_700_000_000.0
CLOCK_JUMP = (-7200.0, 7200.0)
_AMID_CALLS_MAX = 40
_AMID_OUTPUTS_MAX = 20
_SLACK_TICKS = 0.25
"""How much earlier or later than it is due a turn may be, if one turn does instead of two."""
_SLACK_ELECTIONS = 0.05
"""The same as a part of an election timeout, lest a leader with slow ticks is taken for lost."""
_NOWHERE = Start(None, ())
"""The log tells."""
_TURNS_AT_ONCE_MAX = 1000
"""Turns at one moment; more of them are a loop that gets nowhere."""


class Machine:
    """A disk that stays, and a process that comes and goes."""

    __slots__ = (
        "_abandoned",
        "_alarm_at",
        "_busy_until",
        "_clock_now",
        "_cluster",
        "_due_at",
        "_entrance",
        "_events",
        "_has_ticked",
        "_in_turn",
        "_incarnation",
        "_is_woken",
        "_jobs",
        "_last_turn",
        "_make_front",
        "_outputs_left",
        "_pace",
        "_random",
        "_requests",
        "_slack_seconds",
        "_stalled_until",
        "_started_at",
        "_tick_at",
        "_turn_at",
        "_turns_now",
        "_world",
        "config",
        "crashes",
        "deaf_until",
        "disk",
        "edge",
        "faults",
        "front",
        "initial_start",
        "is_dead",
        "is_existing",
        "is_retired",
        "is_wiped",
        "known",
        "logs",
        "member",
        "name",
        "number",
        "paused_until",
        "peers",
        "seen_applied",
        "seen_committed",
        "seen_configuration",
        "seen_revision",
        "seen_term",
        "snapshots_sent",
        "starts",
        "stops",
        "tick_seconds",
    )

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        number: int,
        config: MemberConfig,
        faults: Faults,
        directory: str,
        make_front: Callable[[Member, SimulatedEdge], Front],
    ) -> None:
        self.number = number
        self.name = f"m{number}"
        self.config = config
        self.faults = faults
        self.edge = SimulatedEdge(world, self.name, faults)
        self.logs = CollectedLogs(world, self.name)
        self.member: Member | None = None
        self.front: Front | None = None
        # What arrived since the last turn: a batch, which the turn may have no time for.
        self._requests: list[Request] = []
        self._events: list[Event] = []
        self.peers: Peers
        # Where a process without a log starts, and whether it is told that its cluster exists.
        self.initial_start = _NOWHERE
        self.is_existing = False
        self.known: Sequence[Peer] = ()
        # Has lost its disk, and must not come back as who it was.
        self.is_wiped = False
        self.is_dead = True
        # Given up for good.
        self.is_retired = False
        self.paused_until = 0.0
        self.deaf_until = 0.0
        self.seen_revision = self.seen_term = self.seen_committed = self.seen_applied = 0
        self.seen_configuration: Configuration | None = None
        self.crashes = 0
        self.starts = 0
        self.stops = 0
        self.snapshots_sent = 0
        self._world = world
        self._cluster = cluster
        self._make_front = make_front
        # Asks while the process looks for its place.
        self._entrance: Entrance | None = None
        self._random: Random = world.stream(self.name)
        self.disk = Disk(world.stream(f"{self.name}/disk"), directory, config.directory, self.line)
        self._stalled_until = 0.0
        self.tick_seconds = config.heartbeat_seconds
        self._slack_seconds = 0.0
        self._incarnation = 0
        self._jobs: dict[Place, deque[Job]] = {}
        # Whether it is woken, and when the turn begins; None: at no moment.
        self._is_woken = False
        self._turn_at: float | None = None
        # When a turn has something to do although nothing happens, and when to look for that.
        self._due_at = inf
        self._alarm_at = inf
        self._tick_at = 0.0
        self._has_ticked = False
        self._last_turn = 0.0
        self._turns_now = 0
        self._clock_now = 0.0
        self._in_turn = False
        self._busy_until = 0.0
        self._started_at = UNIX_SECONDS
        # Calls that were given up before they arrived, among others that ended.
        self._abandoned: set[int] = set()
        # What the process's clock advances in a second.
        self._pace = 1.0
        # How many outputs until the process ends amid them; None: it does not.
        self._outputs_left: int | None = None

    @property
    def files(self) -> MemoryFiles:
        """The files on its disk, as they are now."""
        return self.disk.files

    def line(self, what: str) -> None:
        """Add a line to the trace."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what)

    # The life of a process.

    def start(self) -> None:
        """Start the process on what is on the disk; it may crash at once."""
        assert self.is_dead
        self.is_dead = False
        self._incarnation += 1
        self.starts += 1
        self._jobs = {place: deque() for place in Place}
        self._is_woken = False
        self._turn_at = None
        self._due_at = self._alarm_at = inf
        self.disk.power_on()
        self.line("start")
        drift = self._random.uniform(-self.faults.tick_drift, self.faults.tick_drift)
        self.tick_seconds = self.config.heartbeat_seconds * (1 + drift)
        self._slack_seconds = min(
            _SLACK_TICKS * self.tick_seconds, _SLACK_ELECTIONS * self.config.election_seconds
        )
        # Its clock is never faster than that of clients, who judge when leases end.
        self._pace = 1.0 - self._random.uniform(0.0, self.faults.clock_drift)
        self.guarded(self._enter)

    def _enter(self) -> None:
        """Go on where the log ends; without one, find out where to start."""
        if log_exists(self.files, f"{self.config.directory}/wal"):
            self._open(_NOWHERE)
            return
        entrance = self.peers.enter()
        if entrance is None:
            self._open(self.initial_start)
        else:
            self._entrance = entrance
            self._find_place()

    def _find_place(self) -> None:
        entrance = self._entrance
        assert entrance is not None
        try:
            found = entrance.go_on(self.now)
        except BootstrapError as error:
            self.line(f"refused: {error}")
            self._die(power_cut=False)
            self._cluster.refused(self, error)
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
        """Look at what became of questions."""
        if incarnation != self._incarnation or self._entrance is None:
            return
        if not self._later(self._enter_on, incarnation):
            self.guarded(self._find_place)

    def _open(self, start: Start) -> None:
        seams = Seams(
            files=self.files,
            environments=self.disk.environments,
            logger=self.logs,
            clock=self._clock,
            boot_clock=lambda: max(self.now, self._clock_now),
            random_below=self._random.randrange,
            unix_seconds=self._time_of_day(),
        )
        self.known = start.known
        joins = None if start.joined is None else start.joined[:2]
        member = open_member(replace(self.config, joins=joins), seams)
        self.member = member
        self.peers.begin(member)
        self.front = self._make_front(member, self.edge)
        self.seen_revision = self.seen_term = self.seen_committed = self.seen_applied = 0
        self.seen_configuration = None
        self.line(f"up applied {member.applied} revision {member.store.revision}")
        self._has_ticked = False
        self._tick_at = self._world.now + self._random.random() * self.tick_seconds
        self._world.at(self._tick_at, self._tick, self._incarnation)
        self._cluster.turned(self)
        self.request_turn()

    def _time_of_day(self) -> float:
        """Return what the clock on the wall says at a start; it may have jumped."""
        random = self._random
        if random.random() < self.faults.clock_jump_chance:
            # Or it stands where it stood at the last start: what is made of it must differ anyway.
            now = UNIX_SECONDS + self._world.now + random.uniform(*CLOCK_JUMP)
            self._started_at = random.choice([now, self._started_at])
        else:
            self._started_at = UNIX_SECONDS + self._world.now
        return self._started_at

    @property
    def peer_urls(self) -> tuple[str, ...]:
        """Where others reach it."""
        return (f"http://{self.name}:2380",)

    def crash(self, *, power_cut: bool) -> None:
        """End the process now; jobs on their way are done, not done, or half done."""
        if self.is_dead:
            return
        random = self._random
        for jobs in self._jobs.values():
            if jobs and random.random() < 0.67:
                # Half of these end somewhere on the way, at a call of the seed's choice.
                self.disk.cut_off_after(random.randint(0, 3) if random.random() < 0.5 else None)
                try:
                    jobs[0].run(self.files, self.disk.environments)
                except ProcessEnd:
                    break
                except (OSError, BackendError):
                    # The disk fails as well; nobody is left to be told.
                    continue
        self._die(power_cut=power_cut)

    def crash_amid(self) -> None:
        """Let the process end between two calls to the disk, or two outputs, soon."""
        if self.is_dead:
            return
        if self._random.random() < 0.6:
            self.disk.cut_off_after(self._random.randint(0, _AMID_CALLS_MAX))
        else:
            self._outputs_left = self._random.randint(0, _AMID_OUTPUTS_MAX)

    def cut_off_outputs(self) -> None:
        """Let the process end before the next thing it has to say."""
        self._outputs_left = 0

    def _die(self, *, power_cut: bool) -> None:
        self.is_dead = True
        self.crashes += 1
        self._incarnation += 1
        self._outputs_left = None
        self.line("power cut" if power_cut else "killed")
        self.member = None
        self.front = None
        self._entrance = None
        self._requests, self._events = [], []
        self._jobs = {}
        self.paused_until = self.deaf_until = 0.0
        self.disk.power_off(power_cut=power_cut)
        self.edge.crash()
        self.peers.crash(power_cut=power_cut)

    def _loses_power(self) -> bool:
        return self._random.random() < self.faults.power_cut_chance

    def guarded(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run code of the member; a crash ends the process, anything else is a finding."""
        try:
            call(*arguments)
        except ProcessEnd:
            self._die(power_cut=self._loses_power())
        except Violation:
            raise
        except Exception as error:
            if self.disk.is_cut_off:
                self._die(power_cut=self._loses_power())
            elif self.disk.explains(error) or self._cluster.accounts_for(error):
                self._stop(error)
            elif isinstance(error, MemberStopped):
                raise Violation("the member serves", f"{self.name} stopped: {error!r}") from error
            else:
                raise Violation("the member serves", f"{self.name} raised {error!r}") from error

    def _stop(self, error: Exception) -> None:
        """Let a member end that could not go on; its machine is started anew or goes on."""
        self.stops += 1
        self.line(f"stopped: {error}")
        self._die(power_cut=self._random.random() < 0.5)
        self._cluster.stopped(self)

    def wipe(self) -> None:
        """Let the machine lose its power and its disk, and be given an empty one."""
        self.crash(power_cut=True)
        self.line("disk lost")
        self.is_wiped = True
        self.disk.wipe()

    def end(self) -> None:
        """End the process for good, and give its files back."""
        self.is_dead = self.is_retired = True
        self._incarnation += 1
        self.member = self.front = self._entrance = None
        self.edge.crash()
        self.disk.close()

    def hash_kv(self) -> tuple[int, int, int]:
        """Return the member's own hash of its keys: value, revision, compacted revision."""
        member = self.member
        assert member is not None
        job = member.store.hash_kv(0)
        if isinstance(job, HashKV):
            return job
        try:
            return job.run(self.files, self.disk.environments), job.revision, job.compact_revision
        finally:
            member.store.hash_ended(job)

    def disarm(self) -> None:
        """Let the process live; where it stands still, it does so for the rest of that time."""
        self._outputs_left = None
        self.disk.relieve()
        self._stalled_until = 0.0

    def pause(self, seconds: float) -> None:
        """Let the process stand still for a while."""
        if not self.is_dead:
            self.line(f"paused for {seconds:.3f}")
            # What was put off until the end of an earlier pause comes at that time, not before.
            self.paused_until = max(self.paused_until, self._world.now + seconds)
            # Peers have given up its connections meanwhile: clients are heard first.
            self.deaf_until = self.paused_until + self._random.uniform(0.0, 0.5)

    def stall(self, seconds: float) -> None:
        """Let whatever is begun on the disk take at least until then."""
        if not self.is_dead:
            self.line(f"disk stalls for {seconds:.3f}")
        self._stalled_until = self._world.now + seconds

    def _later(self, call: Callable[..., None], *arguments: object) -> bool:
        """Put something off while the process stands still; return whether it was."""
        if self.paused_until <= self._world.now:
            return False
        # All at the same moment: a difference that is added again may be another by a hair.
        self._world.at(self.paused_until, call, *arguments)
        return True

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

    def tell(self, call: Callable[..., object], *arguments: Any) -> bool:
        """Call a function with the member, if it runs, and let a turn follow."""
        member = self.member
        if member is None:
            return False
        self.guarded(self._hand_in, call, member, *arguments)
        return True

    def _hand_in(self, call: Callable[..., object], *arguments: Any) -> None:
        if self.member is not None:
            self.member.note_time(self.now)
        call(*arguments)
        self.request_turn()

    def request_turn(self) -> None:
        """Let a turn be run soon; who is woken already is not woken again."""
        if self._is_woken:
            return
        self._is_woken = True
        least, most = self.faults.wake_delay
        delay = least + self._random.random() * (most - least)
        self._turn_at = moment = max(self._world.now + delay, self._busy_until)
        self._world.at(moment, self._turn, self._incarnation, moment)

    def _wait_until(self, moment: float) -> None:
        """Let a turn be run at a moment, if nothing wakes the process before."""
        tick_at = self._tick_at
        if moment < tick_at and (not self._has_ticked or tick_at <= moment + self._slack_seconds):
            # One turn for the tick and for what is due near to it: the first tick decides when.
            moment = tick_at
        self._due_at = moment = max(moment, self._busy_until, self._world.now)
        # An alarm that comes before is left where it is, and set again when it has come.
        if moment < self._alarm_at:
            self._alarm_at = moment
            self._world.at(moment, self._alarm, self._incarnation, moment)

    def _alarm(self, incarnation: int, moment: float) -> None:
        if incarnation != self._incarnation or moment != self._alarm_at:
            return
        if self._later(self._alarm, incarnation, moment):
            return
        self._alarm_at = inf
        if self._due_at > self._world.now:
            self._wait_until(self._due_at)
        else:
            self._begin_turn(moment)

    def _turn(self, incarnation: int, moment: float) -> None:
        if incarnation != self._incarnation or moment != self._turn_at:
            return
        if not self._later(self._turn, incarnation, moment):
            self._begin_turn(moment)

    def _begin_turn(self, moment: float) -> None:
        self._is_woken = False
        self._turn_at = None
        self._turns_now = self._turns_now + 1 if moment == self._last_turn else 0
        self._last_turn = moment
        if self._turns_now > _TURNS_AT_ONCE_MAX:
            raise Violation("turns get somewhere", f"{self.name} is woken at {moment} for nothing")
        self.guarded(self._run_turn)

    def _run_turn(self) -> None:
        member, now, draw = self.member, self.now, self._random.random
        assert member is not None and self.front is not None
        self._clock_now = max(now, self._clock_now)
        member.note_time(now)
        peers_at = self.peers.hear(now)
        least, most = self.faults.turn_budget
        deadline = now + least + draw() * (most - least)
        front = self.front
        requests, self._requests = self._requests, []
        events, self._events = self._events, []
        self._in_turn = True
        if requests or events or front.is_behind:
            front.serve(requests, events, deadline)
        more = member.turn(now, deadline) or front.is_behind
        self._in_turn = False
        # What the clock said is what the turn took.
        self._busy_until = self._clock_now / self._pace
        self._cluster.turned(self)
        # What the member has to say is taken in an order of the seed's choice.
        for take in _ORDERS[int(draw() * len(_ORDERS))]:
            take(self, member, now)
        if more:
            self.request_turn()
        else:
            moment = min(member.wake_at(now), peers_at)
            # By the clock of the process; and not before it says so, however it is rounded.
            self._wait_until(moment if self._pace == 1.0 else moment / self._pace + 1e-6)

    def output(self) -> None:
        """Let one more output leave the process, unless it ends here."""
        if self._outputs_left is not None:
            self._outputs_left -= 1
            if self._outputs_left < 0:
                self.line("cut off between outputs")
                raise ProcessEnd

    def run_out_of_patience(self) -> None:
        """Let the timer for elections run out."""
        member = self.member
        if member is None or self.paused_until > self._world.now or member.is_leader:
            return
        self.guarded(member.node.campaign)
        if not self.is_dead:
            self.request_turn()

    def peers_spoke(self) -> None:
        """Take a turn soon: something arrived from another member."""
        if self._entrance is not None:
            self._enter_on(self._incarnation)
        elif not self.is_dead:
            self.request_turn()

    def _take_messages(self, member: Member, now: float) -> None:
        for message in member.out.messages:
            self._cluster.said(self.number, message)
        self.peers.deliver(now)

    def _take_answers(self, member: Member, now: float) -> None:
        assert self.front is not None
        if member.out.replies or member.out.sends:
            self.output()
        self.front.deliver(now)

    def _take_jobs(self, member: Member, _now: float) -> None:
        for job in member.out.take_jobs():
            self.output()
            if job.is_awaited:
                self._finish_job(job)
                continue
            jobs = self._jobs[job.place]
            jobs.append(job)
            if len(jobs) == 1:
                self._begin_job(job.place)

    # Jobs.

    def _begin_job(self, place: Place) -> None:
        faults = self.faults
        span = {Place.LOG: faults.log_time, Place.FLUSHER: faults.flush_time}.get(
            place, faults.helper_time
        )
        seconds = self._random.uniform(*span) + max(0.0, self._stalled_until - self._world.now)
        self._world.after(seconds, self._end_job, self._incarnation, place)

    def _end_job(self, incarnation: int, place: Place) -> None:
        if incarnation == self._incarnation and not self._later(self._end_job, incarnation, place):
            self.guarded(self._end_first_job, place)

    def _end_first_job(self, place: Place) -> None:
        jobs = self._jobs[place]
        self._finish_job(jobs[0])
        jobs.popleft()
        if jobs:
            self._begin_job(place)
        self.request_turn()

    def _finish_job(self, job: Job) -> None:
        member = self.member
        assert member is not None
        try:
            result = job.run(self.files, self.disk.environments)
        except Exception as error:
            self.line(f"{type(job.work).__name__} failed: {error}")
            member.failed(job, error)
            return
        if isinstance(job.work, HashRows):
            self._cluster.hashed(self, job.work, result)  # type: ignore[arg-type]
        if self._world.trace is not None:
            self.line(f"did {type(job.work).__name__}")
        member.completed(job, result)

    # What arrives.

    def _tick(self, incarnation: int) -> None:
        if incarnation != self._incarnation or self._later(self._tick, incarnation):
            return
        member, now = self.member, self._world.now
        assert member is not None
        self._has_ticked = True
        self._tick_at = now + self.tick_seconds
        self._world.at(self._tick_at, self._tick, incarnation)
        self.guarded(member.tick, self.now)
        # A turn that is due in a moment takes the tick in.
        if self._due_at > now + self._slack_seconds and not self.is_dead:
            self.request_turn()

    def serve(
        self,
        call: int,
        method: int,
        payload: bytes,
        answered: Answered,
    ) -> None:
        """Take a unary request; a machine that is down refuses the connection."""
        if self.member is None:
            answered(REFUSED)
            return
        if self._later(self.serve, call, method, payload, answered):
            return
        if call in self._abandoned:
            return
        self.edge.register(call, answered)
        self._requests.append((call, method, payload, None))
        self.request_turn()

    def open_stream(
        self, call: int, method: int, answered: Answered, message: Callable[[bytes], None]
    ) -> None:
        """Open a stream; a machine that is down refuses the connection."""
        if self.member is None:
            answered(REFUSED)
            return
        if call in self._abandoned:
            return
        self.edge.register_stream(call, answered, message)
        self.stream_event(EventKind.OPENED, call, (method, None))

    def stream_event(self, kind: EventKind, call: int, detail: object) -> None:
        """Tell what happened to a stream."""
        if self.is_dead or not self.edge.is_open(call):
            return
        if self._later(self.stream_event, kind, call, detail):
            return
        if kind == EventKind.ENDED:
            self.edge.forget(call)
        self._events.append((kind, call, detail))
        self.request_turn()

    def hang_up(self, call: int) -> None:
        """Note that a client is gone: the end of a stream is told, an answer is not taken."""
        if self.edge.is_told(call):
            self.stream_event(EventKind.ENDED, call, None)
        elif not self.edge.forget(call):
            # It may not have arrived yet.
            self._abandoned.add(call)

    def unstall(self, call: int) -> None:
        """Let the client of a stream take what waits for it."""
        if self.edge.unstall(call):
            self.stream_event(EventKind.WRITABLE, call, None)

    @property
    def incarnation(self) -> int:
        """A number that changes with every start and every end of the process."""
        return self._incarnation


_ORDERS = list(permutations((Machine._take_messages, Machine._take_jobs, Machine._take_answers)))

REFUSED = Status(Code.UNAVAILABLE, "connection refused")
"""The request was not even sent."""
