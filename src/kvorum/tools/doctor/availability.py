"""Find what keeps a cluster from answering: silent members, a lost quorum, unstable leaders."""

from collections.abc import Iterator

from kvorum.client.values import Member
from kvorum.tools.doctor.findings import Certainty, Finding, Unknown, command_line
from kvorum.tools.doctor.observations import ClusterSample, MemberStatusSample, Observation, is_at

LEADER_CHANGES_MAX = 3
LEADER_CHANGES_SECONDS = 900.0
"""More than LEADER_CHANGES_MAX changes in this time are too many."""
ROUND_TRIP_SECONDS_MAX = 0.15
ROUND_TRIPS_MIN = 10
"""A short interruption may have delayed a smaller number of round trips."""

_CERTAIN, _LIKELY, _POSSIBLE = Certainty


def availability(sample: ClusterSample) -> Iterator[Finding]:
    """Yield the findings about reachability, quorum and leaders."""
    yield from _clusters(sample)
    silent = _silent(sample)
    quorum_lost = _quorum(sample, silent)
    if quorum_lost is not None:
        yield quorum_lost
    else:
        yield from _leaders(sample)
    for observation in sample.observations:
        if observation.state is None:
            yield _unreachable(sample, observation)
    yield from _changes(sample)
    yield from _round_trips(sample)
    yield from _voters(sample)


def _clusters(sample: ClusterSample) -> Iterator[Finding]:
    by_cluster: dict[int, list[str]] = {}
    for each, state in sample.answers:
        by_cluster.setdefault(state.cluster, []).append(each.endpoint)
    if len(by_cluster) > 1:
        yield Finding(
            "several-clusters",
            _CERTAIN,
            "",
            "the endpoints belong to different clusters, so the rest compares what does not "
            "belong together",
            {
                "clusters": "; ".join(
                    f"{cluster:x} at {', '.join(found)}" for cluster, found in by_cluster.items()
                )
            },
            tuple(
                command_line(*sample.command, f"--endpoints={','.join(found)}", "doctor")
                for found in by_cluster.values()
            ),
        )


def _silent(sample: ClusterSample) -> list[Member]:
    """Return the voters whose endpoint was asked but which did not answer."""
    answered = {state.member for _, state in sample.answers}
    return [
        each
        for each in sample.voters
        if each.id not in answered
        and any(is_at(each, observation.endpoint) for observation in sample.observations)
    ]


def _quorum(sample: ClusterSample, silent: list[Member]) -> Finding | None:
    answers = sample.answers
    if not answers:
        asked = len(sample.observations)
        return Finding(
            "quorum-lost",
            _LIKELY if asked > 1 else _POSSIBLE,
            "",
            "no endpoint answers, so nothing can be read or written through them",
            {"endpoints_asked": asked, "endpoints_answered": 0},
            (_offline(sample),),
        )
    voters = len(sample.voters)
    quorum = voters // 2 + 1
    led = [state for _, state in answers if state.leader]
    if not voters or sample.has_agreed or voters - len(silent) >= quorum:
        return None
    return Finding(
        "quorum-lost",
        # A leader that has lost its quorum needs a moment to step down.
        _LIKELY if led else _CERTAIN,
        "",
        f"{len(silent)} of {voters} voters do not answer; {quorum} are needed, so nothing can be "
        "written or read, but for serializable reads. Start them; if their disks are lost, "
        "recover from the member that knows most",
        {
            "voters": voters,
            "quorum": quorum,
            "voters_silent": ", ".join(sample.name(each.id) for each in silent),
            "members_with_leader": len(led),
        },
        (_offline(sample), command_line(*_all(sample), "endpoint", "status", "-w", "table")),
    )


def _leaders(sample: ClusterSample) -> Iterator[Finding]:
    lost = [(each, state) for each, state in sample.answers if not state.leader]
    if not lost:
        return
    if len(lost) == len(sample.answers):
        yield Finding(
            "no-leader",
            _CERTAIN if _still(lost) else _LIKELY,
            "",
            "no member that answers knows a leader, so nothing can be written or read, but for "
            "serializable reads. See whether the members reach each other at their peer URLs",
            {
                "members_answered": len(lost),
                "voters": len(sample.voters),
                "raft_term": max(state.raft_term for _, state in lost),
            },
            (command_line(*_all(sample), "endpoint", "status", "--cluster", "-w", "table"),),
        )
        return
    for each, state in lost:
        yield Finding(
            "no-leader",
            _CERTAIN if _still([(each, state)]) else _LIKELY,
            each.endpoint,
            f"member {sample.name(state.member)} knows no leader, though others do: it does not "
            "reach them at their peer URLs, or they do not reach it",
            {"raft_term": state.raft_term, "raft_index": state.raft_index},
            (command_line(*_all(sample), "member", "list", "-w", "table"),),
        )


def _still(found: list[tuple[Observation, MemberStatusSample]]) -> bool:
    """Return whether these members had no leader in the earlier sample, too."""
    return all(each.before is not None and not each.before.leader for each, _ in found)


def _unreachable(sample: ClusterSample, observation: Observation) -> Finding:
    member = sample.member_at(observation.endpoint)
    who = f" of member {sample.name(member.id)}" if member is not None else ""
    return Finding(
        "member-unreachable",
        _CERTAIN,
        observation.endpoint,
        f"endpoint {observation.endpoint}{who} does not answer. See whether the process runs, and "
        "whether this machine may reach it",
        {"error": observation.problem},
        (
            command_line(
                *sample.command, f"--endpoints={observation.endpoint}", "endpoint", "health"
            ),
            _offline(sample),
        ),
    )


def _changes(sample: ClusterSample) -> Iterator[Finding]:
    """Yield one finding for all members, because all of them see the same changes."""
    most: tuple[float, int, float, str] | None = None
    for each, _ in sample.answers:
        changes, uptime = each.metrics.leader_changes, each.metrics.uptime_seconds
        if changes is None or uptime is None:
            continue
        often = changes * LEADER_CHANGES_SECONDS / max(uptime, LEADER_CHANGES_SECONDS)
        # The counter includes the first leader that a member sees, which is no change.
        if changes - 1 > LEADER_CHANGES_MAX and often > LEADER_CHANGES_MAX:
            most = max(most or (0.0, 0, 0.0, ""), (often, changes, uptime, each.endpoint))
    if most is not None:
        often, changes, uptime, endpoint = most
        yield Finding(
            "leader-changes",
            _LIKELY,
            endpoint,
            "the leader changes often: heartbeats come too late. Look for slow disks, a slow "
            "network, machines without processor time, and a short --election-timeout",
            {
                "leader_changes": changes,
                "uptime_seconds": round(uptime),
                "changes_per_quarter_hour": round(often, 1),
            },
            (command_line(*_all(sample), "top"),),
        )


def _round_trips(sample: ClusterSample) -> Iterator[Finding]:
    for each, _ in sample.answers:
        timing = each.metrics.round_trips
        if timing is None or timing.timed < ROUND_TRIPS_MIN:
            continue
        if timing.median_seconds > ROUND_TRIP_SECONDS_MAX:
            yield Finding(
                "network-slow",
                _LIKELY,
                each.endpoint,
                "messages to other members take long; --heartbeat-interval should be about a round "
                "trip, and --election-timeout ten times that",
                {
                    "round_trip_median_seconds": round(timing.median_seconds, 4),
                    "round_trip_p99_seconds": round(timing.p99_seconds, 4),
                    "round_trips": timing.timed,
                },
                (command_line(*_all(sample), "top"),),
            )


def _voters(sample: ClusterSample) -> Iterator[Finding]:
    voters = len(sample.voters)
    if voters == 1:
        yield Finding(
            "single-member",
            _CERTAIN,
            "",
            "one member votes: when it fails, nothing can be read or written until it is back",
            {"voters": 1},
            (_add(sample),),
        )
    elif voters and voters % 2 == 0:
        yield Finding(
            "even-voters",
            _CERTAIN,
            "",
            f"{voters} members vote, which bears no more failures than {voters - 1}",
            {"voters": voters, "failures_borne": (voters - 1) // 2},
            (_add(sample),),
        )


def _add(sample: ClusterSample) -> str:
    words = (Unknown("<name>"), "--learner", Unknown("--peer-urls=<peer url>"))
    return command_line(*_all(sample), "member", "add", *words)


def _all(sample: ClusterSample) -> tuple[str, ...]:
    """Return the words up to `--endpoints`, which lists those that answer, or all if none does."""
    found = [each.endpoint for each, _ in sample.answers]
    found = found or [each.endpoint for each in sample.observations]
    return (*sample.command, f"--endpoints={','.join(found)}")


def _offline(sample: ClusterSample) -> str:
    """Return the command to run on the machine of a stopped member."""
    return command_line(sample.command[0], "doctor", Unknown("--data-dir=<its data directory>"))
