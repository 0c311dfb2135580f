"""The plan of a run: everything that its seed decides before the run starts."""

from dataclasses import dataclass, replace
from random import Random

from kvorum.sim.backups.fleet import Backups, draw_backups
from kvorum.sim.faults import (
    Faults,
    draw,
    draw_directed,
    draw_executor_faults,
    draw_hang_ups,
    draw_more,
    draw_sleep,
    draw_transfers,
    without_faults,
)
from kvorum.sim.json_calls import Dialects, draw_dialects
from kvorum.sim.library.fleet import Library, draw_library
from kvorum.sim.library.suspensions import LEAST_SECONDS, Suspensions, draw_suspensions
from kvorum.sim.limits import DrawnLimits, draw_limits
from kvorum.sim.proxies.tier import Tier, draw_proxy_faults, draw_tier
from kvorum.sim.users import Realm, draw_realm
from kvorum.sim.workloads import CACHED, READER, Workload, draw_more_clients, draw_workload

_HEARTBEATS = [(0.1, 2), (0.1, 4), (0.1, 10), (0.2, 2), (0.25, 4), (0.5, 2)]
"""The seconds of a heartbeat, and how many heartbeats make an election timeout."""
SLEEPING_CHANCE = 0.25
SLEEPING_SECONDS = 5.0
"""How long faults last, at least, where leaders pause."""
TRANSFERS_CHANCE = 0.7
TRANSFERS_SECONDS = 8.0
"""The same where leaders pause when they hand over: leases that they renewed then have to end."""
LEASEHOLDERS = 6
LEASES_CHANCE = 0.5
"""The chance that a run with proxies waits for the end of all leases."""
SNAPSHOTS_CHANCE = 0.7

BCRYPT_COST = 4
"""The lowest cost that bcrypt takes."""
RETENTION_CHANCE = 0.3
SMALL_CHANCE = 0.3
SHORT_TURNS_CHANCE = 0.8
_LONG_STEPS = [0.0001, 0.0003, 0.001]
"""How much time passes until the next look at the clock, in runs with short turns."""
REALM_SECONDS = 6.0
"""How long faults last, at least, where users have to be created first."""
LIBRARY_SECONDS = 6.0
"""How long faults last, at least, with clients of the library."""
BACKUP_SECONDS = 6.0
"""How long faults last, at least, with backups."""
PROXY_SECONDS = 5.0
"""How long faults last, at least, with proxies."""
NEST_WEIGHT = 1.0
"""The weight of nested transactions for clients of etcd's shape, in runs with users."""
REALM_REQUESTS = 1.5
"""How many times as many requests clients send in runs with users."""
DIRECTED_SECONDS, SLEEPER_SECONDS = 6.0, 9.0
"""How long faults last, at least, with a directed sequence of steps."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Plan:
    """A run before it starts. The shrinker makes smaller plans of it."""

    seed: int
    members: int
    faults: Faults
    fault_seconds: float
    """How long faults last."""
    workload: Workload
    options: dict[str, object]
    """Options of the members."""
    limits: DrawnLimits
    """Limits of production that are small."""
    waits_for_leases: bool
    """Whether the run waits for the end of all leases."""
    waits_for_proposals: bool
    """Whether the run waits for the end of all lost proposals."""
    realm: Realm | None = None
    """The users of a run with authentication."""
    dialects: Dialects | None = None
    """How clients speak in a run where some speak JSON."""
    library: Library | None = None
    """The clients of the library in a run that has some."""
    suspensions: Suspensions | None = None
    """How those clients are suspended, in a run where they are."""
    tier: Tier | None = None
    """The proxies in a run that has some."""
    backups: Backups | None = None
    """The programs or members that make backups, in a run that has some."""

    def lines(self) -> list[str]:
        """Return the plan as the first lines of a trace."""
        lines = [
            f"seed {self.seed} members {self.members}, faults for {self.fault_seconds:.3f} s",
            f"{self.faults}",
            f"{self.workload}",
            f"{self.options}",
            f"limits {self.limits or 'as in production'}",
            f"{self.realm or 'nobody has to say who it is'}",
        ]
        more = (self.dialects, self.library, self.suspensions, self.tier, self.backups)
        return [*lines, *(f"{each}" for each in more if each is not None)]


def draw_plan(seed: int, members: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(f"{seed}/run")
    faults = draw(random, members)
    seconds = random.uniform(2.0, 8.0)
    workload = draw_workload(random, seconds)
    options = draw_options(random)
    more = Random(f"{seed}/more")
    faults = draw_more(more, faults, members)
    waits_for_leases = random.random() < 0.2
    if faults.rivals_gap:
        # Candidates that pre-vote would not be late.
        options |= {"pre_vote": False}
    small = Random(f"{seed}/limits")
    limits = draw_limits(small)
    if limits:
        options |= draw_small_options(small, options)
    is_free = not (faults.fall_gap or faults.replace_gap or faults.rivals_gap)
    if members > 2 and is_free and more.random() < SLEEPING_CHANCE:
        # Pauses outlast elections, and sessions renew, forget to, and lose their leases.
        faults = draw_sleep(more, faults)
        seconds = max(seconds, SLEEPING_SECONDS)
        workload = _with_leases(workload, 6, (3, 6))
        options |= {"heartbeat_seconds": 0.1, "election_ticks": 4}
        waits_for_leases = True
    elif members > 2 and is_free and not faults.partition_gap:
        transfers = Random(f"{seed}/transfers")
        if transfers.random() < TRANSFERS_CHANCE:
            # As above, and leaders pause only when they have asked another member to take over.
            faults = draw_transfers(transfers, faults)
            seconds = max(seconds, TRANSFERS_SECONDS)
            workload = _with_leases(workload, 12, (3, 5))
            waits_for_leases = True
            options |= {"heartbeat_seconds": 0.1, "election_ticks": 4}
    faults = draw_directed(Random(f"{seed}/directed"), faults, members)
    if faults.growth_full_gap:
        # So the log grows beyond a segment, again and again.
        options |= {"segment_bytes": 4096}
        workload = replace(workload, value_bytes_max=max(400, workload.value_bytes_max))
    elif faults.sleeper_gap or faults.leader_removal_gap or faults.quorum_loss:
        # Clients go on for as long as the sequence lasts.
        least = SLEEPER_SECONDS if faults.sleeper_gap else DIRECTED_SECONDS
        before, seconds = seconds, max(seconds, least)
        workload = replace(workload, think=workload.think * 2 * seconds / before)
    if faults.sleeper_gap:
        # A member that is cut off must not disturb the others, nor ignore messages from before.
        options |= {"heartbeat_seconds": 0.1, "election_ticks": 4, "pre_vote": True}
        options |= {"snapshot_entries": 5, "catch_up_entries": 1, "inflight_messages_max": 16}
        # The appends that are held for it must include a change, with all entries before it.
        options.pop("inflight_bytes_max", None)
        # Compactions that the director asks for must end in time, whatever the retention.
        options |= {"compaction_pause_seconds": 0.01}
    if faults.leader_removal_gap:
        readers = (READER,) * 3
        workload = replace(workload, shapes=workload.shapes + readers)
        options |= {"heartbeat_seconds": 0.1, "election_ticks": 4}
    calls = Random(f"{seed}/calls")
    faults = draw_hang_ups(calls, faults)
    workload = draw_more_clients(calls, workload)
    if workload.inspectors and calls.random() < SNAPSHOTS_CHANCE:
        # Members that were away for a moment get a snapshot, and inspectors ask for their hashes.
        options |= {"snapshot_entries": 5, "catch_up_entries": 2}
    faults = draw_executor_faults(Random(f"{seed}/hands"), faults)
    if limits and small.random() < SHORT_TURNS_CHANCE:
        # A turn ends after reading the clock a few times; the rest of its work waits for the next.
        faults = replace(faults, turn_budget=(0.0, 0.0003), clock_step=small.choice(_LONG_STEPS))
    if faults.sleeper_gap:
        # Joining members get snapshots, whose sender must not keep its log for long.
        limits |= {"log_held_after_sending_seconds": 0.3}
    # A flipped bit may change a user, which no member detects.
    realm = None if faults.flip_gap else draw_realm(Random(f"{seed}/realm"))
    if realm is not None:
        faults = replace(faults, password_error_chance=realm.password_error_chance)
        # Clients go on for as long as faults last, and members refuse some of their requests.
        before, seconds = seconds, max(seconds, REALM_SECONDS)
        requests = int(workload.requests * REALM_REQUESTS)
        think = workload.think * seconds / before / REALM_REQUESTS
        weights = (*workload.weights, ("nest", NEST_WEIGHT))
        workload = replace(workload, requests=requests, think=think, weights=weights)
        options |= {"bcrypt_cost": BCRYPT_COST}
    library = None if realm is not None else draw_library(Random(f"{seed}/library"))
    suspensions: Suspensions | None = None
    if library is not None:
        # Faults last long enough for leases to end.
        before, seconds = seconds, max(seconds, LIBRARY_SECONDS)
        workload = replace(workload, think=workload.think * seconds / before)
        if library.is_calm:
            faults = without_faults()
        suspensions = draw_suspensions(Random(f"{seed}/suspensions"))
        if suspensions is not None:
            seconds = max(seconds, LEAST_SECONDS)
    proxies = Random(f"{seed}/proxies")
    # Where only users may list the members, proxies cannot follow changes of the membership.
    tier = None if realm is not None and changes_members(faults) else draw_tier(proxies)
    if tier is not None:
        faults = draw_proxy_faults(proxies, faults)
        before, seconds = seconds, max(seconds, PROXY_SECONDS)
        workload = replace(
            workload,
            shapes=workload.shapes + (CACHED,) * tier.readers,
            think=workload.think * seconds / before,
            # Some watch the same range.
            watchers=workload.watchers + tier.watchers,
        )
        # A proxy must not renew leases for which no client asks.
        waits_for_leases |= proxies.random() < LEASES_CHANCE
    # Programs that make backups would have to be root.
    backups = None if realm is not None else draw_backups(Random(f"{seed}/backups"))
    retention = draw_retention(Random(f"{seed}/retention"))
    if backups is not None:
        before, seconds = seconds, max(seconds, BACKUP_SECONDS)
        workload = replace(workload, think=workload.think * seconds / before)
        retention = retention or draw_retention(Random(f"{seed}/backed up"))
    return Plan(
        seed=seed,
        members=members,
        faults=faults,
        fault_seconds=seconds,
        workload=workload,
        options=options | draw_hash_checks(random, more) | retention,
        limits=limits,
        waits_for_leases=waits_for_leases,
        waits_for_proposals=random.random() < 0.2,
        realm=realm,
        dialects=draw_dialects(Random(f"{seed}/dialects")),
        library=library,
        suspensions=suspensions,
        tier=tier,
        backups=backups,
    )


def _with_leases(workload: Workload, sessions: int, seconds: tuple[int, int]) -> Workload:
    """Return the workload with at least `sessions` sessions, and with leaseholders."""
    sessions = max(sessions, workload.sessions)
    return replace(workload, sessions=sessions, lease_seconds=seconds, leaseholders=LEASEHOLDERS)


def changes_members(faults: Faults) -> bool:
    """Return whether members come and go."""
    return bool(
        faults.change_gap
        or faults.replace_gap
        or faults.wipe_gap
        or faults.sleeper_gap
        or faults.leader_removal_gap
        or faults.quorum_loss
    )


def draw_options(random: Random) -> dict[str, object]:
    """Return options of the members; small limits, so that a short run reaches them."""
    heartbeat_seconds, election_ticks = random.choice(_HEARTBEATS)
    return {
        "heartbeat_seconds": heartbeat_seconds,
        "election_ticks": election_ticks,
        "pre_vote": random.random() < 0.6,
        "message_bytes_max": random.choice([1, 2000, 1 << 20]),
        "inflight_messages_max": random.choice([2, 16, 512]),
        "segment_bytes": random.choice([4096, 16384, 65536]),
        "snapshot_entries": random.choice([5, 30, 10_000]),
        "catch_up_entries": random.choice([2, 20, 5000]),
        "flush_seconds": random.choice([0.02, 0.1, 0.5]),
        "flush_writes_max": random.choice([3, 50, 10_000]),
        "compaction_batch": random.choice([1, 5, 1000]),
        "compaction_pause_seconds": random.choice([0.01, 0.3]),
        "lease_checkpoints": random.random() < 0.3,
        "watch_progress_seconds": random.choice([0.5, 600.0]),
    }


def draw_small_options(random: Random, options: dict[str, object]) -> dict[str, object]:
    """Return more options with small limits, which fit those that are drawn already."""
    message_bytes = options["message_bytes_max"]
    assert isinstance(message_bytes, int)
    drawn: dict[str, object] = {
        "uncommitted_bytes_max": random.choice([1, 500, 5000]),
        "inflight_bytes_max": max(message_bytes, random.choice([1, 500, 5000])),
        "unapplied_entries_max": random.choice([0, 3, 20]),
        "snapshots_kept": random.choice([1, 2]),
        "segments_kept": random.choice([1, 2]),
    }
    small = {name: value for name, value in drawn.items() if random.random() < SMALL_CHANCE}
    log_bytes = random.choice([20_000, 100_000])
    if random.random() < SMALL_CHANCE:
        # As in production, each limit has room for what the one before lets a member keep.
        small |= {
            "uncommitted_bytes_max": log_bytes // 32,
            "catch_up_bytes_max": log_bytes // 8,
            "held_bytes_max": log_bytes // 2,
            "log_bytes_max": log_bytes,
        }
    return small


def draw_hash_checks(random: Random, more: Random) -> dict[str, object]:
    """Return how often the leader compares hashes, and whether members do at their start."""
    return {
        "corrupt_check_seconds": random.choice([0.0, 0.0, 0.2, 1.0]),
        "compact_hash_check_seconds": random.choice([0.0, 0.0, 0.2, 1.0]),
        "initial_corrupt_check": more.random() < 0.4,
    }


def draw_retention(random: Random) -> dict[str, object]:
    """Return how much history the leader keeps; in most runs all of it."""
    if random.random() >= RETENTION_CHANCE:
        return {}
    if random.random() < 0.5:
        return {"retention_seconds": random.choice([0.3, 1.0, 3.0])}
    return {
        "retention_revisions": random.choice([1, 5, 50]),
        "retention_check_seconds": random.choice([0.1, 0.5, 2.0]),
    }
