"""Find members whose data, progress or versions differ from the others'."""

from collections.abc import Iterator

from kvorum.tools.doctor.findings import Certainty, Finding, Unknown, command_line
from kvorum.tools.doctor.observations import ClusterSample, MemberStatusSample, Observation

ENTRIES_STUCK_MIN = 10
"""Sampling the members at different moments can explain a smaller lag."""
ENTRIES_BEHIND_MAX = 5_000
"""Servers refuse requests when the commit index is further ahead of the applied index."""

_CERTAIN, _LIKELY, _POSSIBLE = Certainty


def agreement(sample: ClusterSample) -> Iterator[Finding]:
    """Find members that differ from each other."""
    yield from _corrupt(sample)
    yield from _hashes(sample)
    yield from _leader_behind(sample)
    yield from _behind(sample)
    yield from _versions(sample)
    yield from _downgrade(sample)


def _at(sample: ClusterSample, endpoint: str, *words: str) -> str:
    return command_line(*sample.command, f"--endpoints={endpoint}", *words)


def _everywhere(sample: ClusterSample, *words: str) -> str:
    return _at(sample, ",".join(each.endpoint for each, _ in sample.answers), *words)


def _corrupt(sample: ClusterSample) -> Iterator[Finding]:
    for alarm in sample.alarms:
        if alarm.kind == "corrupt":
            yield Finding(
                "alarm-corrupt",
                _CERTAIN,
                sample.name(alarm.member),
                f"member {sample.name(alarm.member)} was found to hold other data than the rest, "
                "and everything is refused. See who differs, replace that member by an empty one, "
                "and only then end the alarm",
                {"alarm": "CORRUPT", "member": f"{alarm.member:x}"},
                (
                    _everywhere(sample, "endpoint", "hashkv", "-w", "table"),
                    _everywhere(sample, "member", "remove", f"{alarm.member:x}"),
                    _everywhere(sample, "alarm", "disarm"),
                ),
            )


def _hashes(sample: ClusterSample) -> Iterator[Finding]:
    """Compare hashes of the same revisions, and suspect the minority."""
    groups: dict[tuple[int, int], dict[int, list[tuple[Observation, MemberStatusSample]]]] = {}
    for each, state in sample.answers:
        if each.hash is not None:
            key = each.hash.revision, each.hash.compact_revision
            groups.setdefault(key, {}).setdefault(each.hash.hash, []).append((each, state))
    for (revision, compacted), by_hash in groups.items():
        if len(by_hash) < 2:
            continue
        ranked = sorted(by_hash.items(), key=lambda item: len(item[1]))
        (_, suspects), (_, most) = ranked[0], ranked[-1]
        is_known = len(suspects) < len(most)
        for observation, state in suspects if is_known else [found[0] for _, found in ranked]:
            assert observation.hash is not None, "it is in a group"
            yield Finding(
                "hashes-differ",
                _CERTAIN,
                observation.endpoint,
                f"member {sample.name(state.member)} holds other keys than the other members at "
                "the same revision; "
                + (
                    "most agree on another hash: replace it by an empty member"
                    if is_known
                    else "there is no majority, so which of them is right has to be found out"
                ),
                {
                    "revision": revision,
                    "compact_revision": compacted,
                    "hash": observation.hash.hash,
                    "members_with_this_hash": len(by_hash[observation.hash.hash]),
                    "members_compared": sum(map(len, by_hash.values())),
                },
                (
                    _everywhere(sample, "endpoint", "hashkv", f"--rev={revision}", "-w", "table"),
                    _at(sample, observation.endpoint, "snapshot", "save", Unknown("<backup file>")),
                    _at(
                        sample,
                        (most if is_known else ranked[0][1])[0][0].endpoint,
                        "member",
                        "remove",
                        f"{state.member:x}" if is_known else Unknown("<member id>"),
                    ),
                ),
            )


def _leader_behind(sample: ClusterSample) -> Iterator[Finding]:
    """Find members that have applied entries that their leader does not hold.

    A member's earlier sample is compared with the leader's later one, so that the time between the
    samples cannot explain the difference.
    """
    leaders = [state for _, state in sample.answers if state.leader == state.member]
    for each, state in sample.answers:
        before = each.before
        if before is None:
            continue
        for leader in leaders:
            if leader.raft_term >= before.raft_term and leader.raft_index < before.applied_index:
                yield Finding(
                    "leader-behind",
                    _CERTAIN,
                    each.endpoint,
                    f"member {sample.name(state.member)} has applied entries that leader "
                    f"{sample.name(leader.member)} does not hold: a majority has lost entries that "
                    "were committed, as after their data directories were replaced by "
                    "older copies. Save a snapshot of this member; then restore all members from "
                    "it, or remove it and accept the loss",
                    {
                        "applied_index": before.applied_index,
                        "leader_index": leader.raft_index,
                        "leader_term": leader.raft_term,
                    },
                    (
                        _at(sample, each.endpoint, "snapshot", "save", Unknown("<backup file>")),
                        _everywhere(sample, "member", "remove", f"{state.member:x}"),
                    ),
                )


def _behind(sample: ClusterSample) -> Iterator[Finding]:
    newest = max((state.raft_index for _, state in sample.answers), default=0)
    newest_before = max(
        (each.before.raft_index for each, _ in sample.answers if each.before), default=0
    )
    for each, state in sample.answers:
        if each.before is None:
            continue
        lag = newest - state.applied_index
        lag_before = newest_before - each.before.applied_index
        is_stuck = (
            min(lag, lag_before) >= ENTRIES_STUCK_MIN
            and state.applied_index == each.before.applied_index
        )
        if not is_stuck and min(lag, lag_before) < ENTRIES_BEHIND_MAX:
            continue
        name = "learner-behind" if state.is_learner else "member-behind"
        kind = "learner" if state.is_learner else "member"
        yield Finding(
            name,
            _CERTAIN if is_stuck else _LIKELY,
            each.endpoint,
            f"{kind} {sample.name(state.member)} is behind the others and "
            + ("does not move on" if is_stuck else "stays behind")
            + "; see whether the leader reaches it, and its disk and processor",
            {
                "entries_behind": lag,
                "entries_behind_before": lag_before,
                "applied_index": state.applied_index,
                "newest_index": newest,
            },
            (_everywhere(sample, "top"),),
        )


def _minor(version: str) -> tuple[int, int] | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _versions(sample: ClusterSample) -> Iterator[Finding]:
    found = {each.endpoint: state.version for each, state in sample.answers}
    minors = sorted({minor for version in found.values() if (minor := _minor(version))})
    if len(set(found.values())) < 2 or not minors:
        return
    oldest, newest = minors[0], minors[-1]
    is_apart = newest[0] != oldest[0] or newest[1] - oldest[1] > 1
    yield Finding(
        "versions-incompatible" if is_apart else "versions-differ",
        _CERTAIN,
        "",
        "the members' versions are more than one minor version apart, which no release supports; "
        "bring the oldest members up one minor version at a time"
        if is_apart
        else "the members have different versions; fine while they are being replaced one by one",
        {"versions": ", ".join(f"{version} at {endpoint}" for endpoint, version in found.items())},
        (_everywhere(sample, "endpoint", "status", "-w", "table"),),
    )


def _downgrade(sample: ClusterSample) -> Iterator[Finding]:
    for each, state in sample.answers:
        if state.downgrade_target:
            yield Finding(
                "downgrade-under-way",
                _CERTAIN,
                "",
                f"the cluster is being downgraded to {state.downgrade_target}: replace the "
                "programs of all members by that version, or stay where you are",
                {"target_version": state.downgrade_target, "version": state.version},
                (_at(sample, each.endpoint, "downgrade", "cancel"),),
            )
            return
