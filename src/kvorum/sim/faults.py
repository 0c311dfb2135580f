"""The faults of a run. Every seed draws its own subset and its own rates.

A run in which everything fails all the time explores little: members never get far enough to
have something to lose. So a coin decides whether each fault occurs, and each that does has a rate
of its own. Times are in virtual seconds, chances between 0 and 1.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import TypedDict

Span = tuple[float, float]
"""The lowest and the highest value."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Faults:
    """The rates of one run."""

    frames: bool
    """Members speak production's peer protocol over connections, instead of plain messages.

    Only plain messages are lost one by one, doubled and out of order; only connections break,
    are slow, and fill queues.
    """
    link_bytes_per_second: float
    """How much a connection between members can carry; 0: any amount."""
    link_queue_bytes: int
    """With more than this in flight, a stream between members counts as full; 0: never."""
    reset_gap: float
    """Average time between two breaks of connections between members; 0: there are none."""
    link_delay: Span
    """How long a message between members takes."""
    delay_chance: float
    """Chance that a plain message takes up to ten seconds instead, and so is out of order; a piece
    on a connection takes up to one second, in order."""
    drop_chance: float
    """Chance that a message between members is lost."""
    duplicate_chance: float
    """Chance that a message between members arrives twice."""
    partition_gap: float
    """Average time between two partitions; 0: there is none."""
    partition_time: Span
    """How long a partition lasts."""
    one_way_chance: float
    """Chance that a partition stops one direction only."""
    moving_chance: float
    """Chance that a partition turns into another one, with nothing healed in between."""
    crash_gap: float
    """About the time between two crashes; 0: there is none."""
    terminate_gap: float
    """About the time between two signals that end a process cleanly; 0: there is none."""
    deaf_chance: float
    """Chance that a client does not learn at once that a member ends."""
    down_time: Span
    """How long a crashed member stays down."""
    power_cut_chance: float
    """Chance that a crash loses unsynced writes; otherwise only the process dies."""
    amid_chance: float
    """Chance that a crash hits between two calls to the disk or between two outputs of a turn."""
    all_crash_chance: float
    """Chance that a crash takes every member at once."""
    vote_crash_chance: float
    """Chance that a member loses power right after it voted, and is back at once."""
    rivals_gap: float
    """Average time between two elections with several candidates; 0: none is forced.

    The leader loses its power and is back at once, and the election timers of all others run out
    at once; messages to and from one of them are late.
    """
    leader_crash_chance: float
    """Chance that a new leader loses its power: soon, or when it first commits, before others know
    of that."""
    fall_gap: float
    """Average time between two series of leaders that fall one after another; 0: there is none.

    The first is cut off amid its work. The second is cut off as soon as it is elected, and the
    first is back. The third loses its power when it first commits, before others know of that, and
    the second is back; the election of a fourth brings the third back.
    """
    leader_chance: float
    """Chance that a crash, a pause or a partition hits the leader, and not a random member."""
    pause_gap: float
    """Average time between two pauses of a process; 0: there is none."""
    pause_time: Span
    """How long a process is paused: a moment, or longer than elections take and leases live."""
    disk_error_gap: float
    """Average time between two failing calls to a disk, a write or a sync; 0: none fails.

    A failed write is done in part; the data of a failed sync can be read, but never becomes durable
    unless it is written again.
    """
    disk_full_gap: float
    """Average time between two moments at which a disk fills up; 0: there is room."""
    disk_full_time: Span
    """How long a disk is full."""
    flip_gap: float
    """Average time between two flips of a bit of durable data; 0: there is none.

    The bit is in a file of the log, in a `.snap` file, or in an entry of the database. The disk is
    restored once the member has found it.
    """
    flip_crash_chance: float
    """Chance that a machine crashes right after a bit of its disk has flipped."""
    password_error_chance: float = 0.0
    """Chance that a job that hashes or checks a password fails; `kvorum.sim.users` draws it."""
    disk_stall_gap: float
    """Average time between two stalls of a disk; 0: there is none."""
    disk_stall_time: Span
    """How long a stall lasts; jobs that start meanwhile end after it."""
    log_time: Span
    """How long a write to the log takes, with its sync."""
    flush_time: Span
    """How long a job of the flusher takes."""
    helper_time: Span
    """How long any other job takes."""
    job_error_gap: float
    """Average time between two jobs that fail, each at a call to the disk and in one of the
    executors; 0: none fails unless its disk does."""
    helper_death_gap: float
    """Average time between two deaths of a helper amid a job; 0: none dies."""
    helper_hang_gap: float
    """Average time between two helpers that hang amid a job; 0: none does."""
    helper_hang_time: Span
    """How long a helper hangs."""
    wake_delay: Span
    """How long after an event a turn begins; events in between are part of it."""
    turn_budget: Span
    """The time a turn may take, by the member's clock."""
    clock_step: float
    """How far the member's clock advances, on average, whenever it is read within a turn."""
    tick_drift: float
    """How far a member's ticks may be off, as a fraction of their interval."""
    clock_drift: float
    """How much slower than the clients' clock a member's may be, as a fraction."""
    clock_jump_chance: float
    """Chance that the time of day at a start is off by up to two hours, or repeats the time of the
    last start."""
    change_gap: float
    """Average time between two changes of the membership; 0: there is none.

    A voter or a learner is added, and joins with an empty disk; learners are promoted; a member is
    removed, and its machine abandoned. Answers may be lost like those to any request.
    """
    replace_gap: float
    """Average time between two replacements of a member that cannot be reached; 0: none.

    The member is cut off and removed, and a voter added in its place. Then it is back without
    knowing of its removal: with some of the others it is cut off from the rest for a while.
    """
    wipe_gap: float
    """Average time between two disks that are lost for good; 0: none is.

    The machine gets an empty disk and starts under its old name, with flags to found its cluster
    or to join it. The process must be refused; then the member is removed, and a voter added.
    """
    stale_flags_chance: float
    """Chance that a joining member's flags list the members as a lagging member knows them."""
    strict_changes: bool
    """Members refuse changes that endanger the quorum."""
    move_leader_gap: float
    """Average time between two requests to transfer the leadership; 0: none."""
    defragment_gap: float
    """Average time between two defragmentations of a member; 0: there is none."""
    snapshot_gap: float
    """Average time between two requests for an early snapshot; 0: there is none."""
    quota_bytes: int
    """The quota of the members; once it raises the alarm, the operator compacts, defragments and
    clears the alarm. 0: production's default."""
    connection_chance: float
    """Chance that a client's connection breaks before its request arrives, or before its answer
    does."""
    hang_up_chance: float
    """Chance that a client hangs up soon after a call, whatever it called."""
    transfer_pause_chance: float
    """Chance that a leader pauses as soon as it has asked another member to take over."""
    sleeper_gap: float
    """Average time between two members that sleep through changes of the membership; 0: none does.

    The sleeper is paused, cut off or without power while members are added, promoted and removed,
    and all others compact their logs: it needs a snapshot whose configuration is ahead of its own.
    Appends from before may arrive together with the snapshot, and the sleeper may crash while it
    installs the snapshot.
    """
    growth_full_gap: float
    """Average time between two disks that are full at the call at which a file grows; 0: none."""
    removed_time: Span
    """How long a removed member stays, unless its process ends; (0, 0): a few seconds at most.

    A member that never learns of its removal may stay beyond the end of the faults.
    """
    stays_chance: float
    """Chance that a client keeps to a removed member for as long as its machine exists."""
    leader_removal_gap: float
    """Average time between two leaders that are removed, and then paused; 0: none is.

    Two members are left then: the other one leads next, and gets nothing from the removed one.
    """
    learners_at_once: int
    """How many learners there may be; with more than one, two of them are added at once."""
    proxy_crash_gap: float = 0.0
    """About the time between two crashes of proxies; 0: there is none, as in all of these."""
    proxy_terminate_gap: float = 0.0
    """About the time between two signals that end a proxy cleanly."""
    proxy_pause_gap: float = 0.0
    """About the time between two pauses of proxies."""
    proxy_cut_gap: float = 0.0
    """About the time between two moments at which a proxy is cut off from some members."""
    proxy_reset_gap: float = 0.0
    """About the time between two breaks of connections of proxies, to members or from clients."""
    quorum_loss: float
    """When, as a part of the time of the faults, a majority loses its disks for good; 0: never.

    A new cluster is forced from one machine that is left, and grows to the old size.
    """


_INTERRUPTING = (
    "partition_gap",
    "crash_gap",
    "terminate_gap",
    "vote_crash_chance",
    "leader_crash_chance",
    "pause_gap",
    "disk_error_gap",
    "disk_full_gap",
    "job_error_gap",
    "flip_gap",
    "disk_stall_gap",
    "change_gap",
    "wipe_gap",
    "move_leader_gap",
)
"""Faults that remove or move leaders and members."""


class _Directed(TypedDict):
    sleeper_gap: float
    growth_full_gap: float
    removed_time: Span
    stays_chance: float
    leader_removal_gap: float
    learners_at_once: int
    quorum_loss: float


_UNDIRECTED: _Directed = {
    "sleeper_gap": 0.0,
    "growth_full_gap": 0.0,
    "removed_time": (0.0, 0.0),
    "stays_chance": 0.0,
    "leader_removal_gap": 0.0,
    "learners_at_once": 1,
    "quorum_loss": 0.0,
}


def draw(random: Random, members: int) -> Faults:
    """Return the faults of a run with `members` members."""

    def sometimes(chance: float, low: float, high: float) -> float:
        return random.uniform(low, high) if random.random() < chance else 0.0

    slow_disk = random.random() < 0.25
    faults = Faults(
        frames=random.random() < 0.5,
        link_bytes_per_second=sometimes(0.3, 5_000, 200_000),
        link_queue_bytes=random.choice([0, 0, 300, 3000]),
        reset_gap=sometimes(0.5, 0.1, 2.0),
        link_delay=random.choice([(0.0002, 0.001), (0.001, 0.02), (0.001, 0.08)]),
        delay_chance=sometimes(0.4, 0.001, 0.05),
        drop_chance=sometimes(0.5, 0.005, 0.15),
        duplicate_chance=sometimes(0.5, 0.005, 0.1),
        partition_gap=sometimes(0.6, 0.5, 4.0),
        partition_time=random.choice([(0.2, 1.5), (1.0, 4.0)]),
        one_way_chance=sometimes(0.4, 0.1, 0.6),
        crash_gap=sometimes(0.7, 0.5, 5.0),
        down_time=random.choice([(0.02, 0.5), (0.2, 4.0)]),
        power_cut_chance=random.choice([0.5, 0.9, 1.0]),
        amid_chance=sometimes(0.8, 0.3, 0.9),
        all_crash_chance=sometimes(0.3, 0.1, 0.5),
        vote_crash_chance=sometimes(0.5, 0.2, 0.8),
        leader_crash_chance=sometimes(0.35, 0.3, 0.9),
        leader_chance=random.choice([0.2, 0.6, 0.9]),
        pause_gap=sometimes(0.5, 0.5, 3.0),
        pause_time=random.choice([(0.1, 1.0), (0.5, 3.0), (2.0, 12.0)]),
        log_time=(0.005, 0.2) if slow_disk else random.choice([(0.0001, 0.001), (0.001, 0.01)]),
        flush_time=(0.05, 0.6) if slow_disk else random.choice([(0.0005, 0.005), (0.01, 0.1)]),
        helper_time=random.choice([(0.001, 0.01), (0.05, 0.5)]),
        wake_delay=random.choice([(0.0, 0.0002), (0.0, 0.003), (0.0, 0.02)]),
        turn_budget=random.choice([(0.005, 0.005), (0.0, 0.005), (0.0, 0.0003)]),
        clock_step=random.choice([0.00001, 0.0001, 0.001]),
        tick_drift=sometimes(0.4, 0.01, 0.2),
        connection_chance=sometimes(0.6, 0.005, 0.05),
        clock_drift=sometimes(0.4, 0.0001, 0.05),
        clock_jump_chance=sometimes(0.4, 0.2, 0.8),
        change_gap=sometimes(0.3, 0.5, 3.0),
        strict_changes=random.random() < 0.5,
        move_leader_gap=sometimes(0.3, 0.3, 2.0),
        defragment_gap=sometimes(0.3, 0.3, 3.0),
        snapshot_gap=sometimes(0.3, 0.3, 2.0),
        quota_bytes=random.choice([0, 0, 0, 150_000, 250_000]),
        disk_error_gap=sometimes(0.2, 0.7, 4.0),
        disk_full_gap=sometimes(0.15, 0.7, 4.0),
        disk_full_time=random.choice([(0.1, 1.0), (0.5, 4.0)]),
        flip_gap=sometimes(0.2, 0.5, 3.0),
        flip_crash_chance=random.choice([0.2, 0.7]),
        disk_stall_gap=sometimes(0.25, 0.7, 4.0),
        disk_stall_time=random.choice([(0.05, 0.5), (0.5, 4.0)]),
        fall_gap=sometimes(0.15 if members > 2 else 0.0, 0.05, 0.5),
        replace_gap=sometimes(0.2 if members > 2 else 0.0, 0.1, 0.6),
        rivals_gap=0.0,
        moving_chance=0.0,
        wipe_gap=0.0,
        stale_flags_chance=0.0,
        terminate_gap=0.0,
        deaf_chance=0.0,
        job_error_gap=0.0,
        helper_death_gap=0.0,
        helper_hang_gap=0.0,
        helper_hang_time=(0.0, 0.0),
        hang_up_chance=0.0,
        transfer_pause_chance=0.0,
        **_UNDIRECTED,
    )
    if (faults.fall_gap or faults.replace_gap) and random.random() < 0.75:
        return _left_alone(faults)
    return faults


def _left_alone(faults: Faults) -> Faults:
    """Return the faults without those that would interrupt a sequence of steps."""
    peace = without_faults()
    return replace(faults, **{name: getattr(peace, name) for name in _INTERRUPTING})


def draw_more(random: Random, faults: Faults, members: int) -> Faults:
    """Return the faults and those that a separate random stream decides."""

    def sometimes(chance: float, low: float, high: float) -> float:
        return random.uniform(low, high) if random.random() < chance else 0.0

    # A machine whose member forgot its votes must be refused, and only the peer protocol does that.
    wipes = 0.35 if members > 2 and faults.frames and not faults.replace_gap else 0.0
    faults = replace(
        faults,
        moving_chance=sometimes(0.4, 0.3, 0.9),
        wipe_gap=sometimes(wipes, 0.5, 3.0),
        stale_flags_chance=sometimes(0.5, 0.1, 0.6),
        terminate_gap=sometimes(0.4, 0.5, 4.0),
        deaf_chance=random.choice([0.0, 0.3]),
    )
    is_free = members > 2 and not (faults.frames or faults.fall_gap or faults.replace_gap)
    rivals_gap = sometimes(0.4 if is_free else 0.0, 0.3, 2.0)
    if rivals_gap and random.random() < 0.75:
        faults = _left_alone(faults)
    if rivals_gap:
        # To vote twice, a member must be asked twice and restart in between, before the late
        # candidate learns of the other.
        faults = replace(
            faults,
            rivals_gap=rivals_gap,
            vote_crash_chance=random.uniform(0.6, 0.95),
            link_delay=min(faults.link_delay, (0.001, 0.02)),
            log_time=min(faults.log_time, (0.001, 0.01)),
            wake_delay=min(faults.wake_delay, (0.0, 0.003)),
        )
    return faults


def draw_executor_faults(random: Random, faults: Faults) -> Faults:
    """Return the faults and those of the executors that run jobs."""

    def sometimes(chance: float, low: float, high: float) -> float:
        return random.uniform(low, high) if random.random() < chance else 0.0

    is_left_alone = not any(getattr(faults, name) for name in _INTERRUPTING)
    return replace(
        faults,
        job_error_gap=sometimes(0.0 if is_left_alone else 0.2, 0.5, 3.0),
        helper_death_gap=sometimes(0.25, 0.3, 2.0),
        helper_hang_gap=sometimes(0.25, 0.5, 3.0),
        helper_hang_time=random.choice([(0.1, 1.0), (1.0, 5.0)]),
    )


def draw_sleep(random: Random, faults: Faults) -> Faults:
    """Return the faults of a run in which leaders pause past elections, and little else happens."""
    return replace(
        _left_alone(faults),
        pause_gap=random.uniform(1.0, 3.0),
        pause_time=(1.0, 3.0),
        leader_chance=0.9,
    )


def draw_transfers(random: Random, faults: Faults) -> Faults:
    """Return the faults of a run in which leaders pause as soon as they have handed over."""
    return replace(
        _left_alone(faults),
        # By then clients hold leases, which outlive the pause.
        move_leader_gap=random.uniform(2.0, 4.0),
        transfer_pause_chance=random.uniform(0.5, 1.0),
        pause_time=(1.3, 1.9),
    )


def draw_hang_ups(random: Random, faults: Faults) -> Faults:
    """Return the faults with clients that hang up soon, in a third of the runs."""
    return replace(faults, hang_up_chance=random.choice([0.0, 0.0, 0.0, 0.0, 0.05, 0.2]))


def draw_directed(random: Random, faults: Faults, members: int) -> Faults:
    """Return the faults with one directed sequence of steps; in most runs with none.

    Faults that would interrupt the sequence are mostly left out.
    """
    if faults.change_gap and random.random() < 0.5:
        faults = replace(faults, learners_at_once=2)
    kind = random.random()
    is_alone = random.random() < 0.8
    if kind >= 0.35 or (members < 3 and kind >= 0.06):
        return faults
    if kind < 0.06:
        # One call that fails is no sequence: all other faults may occur, too.
        return replace(faults, growth_full_gap=random.uniform(0.2, 1.0))
    faults = replace(faults, fall_gap=0.0, replace_gap=0.0, rivals_gap=0.0, wipe_gap=0.0)
    if is_alone:
        faults = _left_alone(faults)
    # Strict members refuse changes while another cannot be reached, so few would be made.
    faults = replace(faults, strict_changes=False, learners_at_once=random.randint(1, 2))
    if kind < 0.18:
        return replace(
            faults,
            frames=random.random() < 0.2,
            drop_chance=0.0,
            delay_chance=0.0,
            sleeper_gap=random.uniform(0.2, 1.0),
            # Slow disks would take the time for the steps; the director stalls one where it helps.
            log_time=random.choice([(0.0001, 0.001), (0.001, 0.01)]),
            flush_time=random.choice([(0.0005, 0.005), (0.01, 0.1)]),
            helper_time=(0.001, 0.01),
        )
    if kind < 0.27:
        return replace(
            faults,
            drop_chance=0.0,
            delay_chance=0.0,
            removed_time=(5.0, 60.0),
            stays_chance=random.choice([0.5, 0.9]),
            leader_removal_gap=random.uniform(0.1, 0.6),
        )
    return replace(faults, quorum_loss=random.uniform(0.2, 0.5))


def without_faults() -> Faults:
    """Return a world without faults, as at the end of every run."""
    return Faults(
        frames=False,
        link_bytes_per_second=0.0,
        link_queue_bytes=0,
        reset_gap=0.0,
        link_delay=(0.0005, 0.002),
        delay_chance=0.0,
        drop_chance=0.0,
        duplicate_chance=0.0,
        partition_gap=0.0,
        partition_time=(0.0, 0.0),
        one_way_chance=0.0,
        moving_chance=0.0,
        crash_gap=0.0,
        terminate_gap=0.0,
        deaf_chance=0.0,
        down_time=(0.01, 0.02),
        power_cut_chance=1.0,
        amid_chance=0.0,
        all_crash_chance=0.0,
        vote_crash_chance=0.0,
        rivals_gap=0.0,
        leader_crash_chance=0.0,
        fall_gap=0.0,
        leader_chance=0.0,
        pause_gap=0.0,
        pause_time=(0.0, 0.0),
        log_time=(0.0001, 0.001),
        flush_time=(0.0005, 0.005),
        helper_time=(0.001, 0.01),
        job_error_gap=0.0,
        helper_death_gap=0.0,
        helper_hang_gap=0.0,
        helper_hang_time=(0.0, 0.0),
        wake_delay=(0.0, 0.001),
        turn_budget=(0.005, 0.005),
        clock_step=0.00001,
        tick_drift=0.0,
        connection_chance=0.0,
        clock_drift=0.0,
        clock_jump_chance=0.0,
        change_gap=0.0,
        replace_gap=0.0,
        wipe_gap=0.0,
        stale_flags_chance=0.0,
        strict_changes=False,
        move_leader_gap=0.0,
        defragment_gap=0.0,
        snapshot_gap=0.0,
        quota_bytes=0,
        disk_error_gap=0.0,
        disk_full_gap=0.0,
        disk_full_time=(0.0, 0.0),
        flip_gap=0.0,
        flip_crash_chance=0.0,
        disk_stall_gap=0.0,
        disk_stall_time=(0.0, 0.0),
        hang_up_chance=0.0,
        transfer_pause_chance=0.0,
        **_UNDIRECTED,
    )
