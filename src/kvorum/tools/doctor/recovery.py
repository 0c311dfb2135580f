"""Compare several data directories of one cluster to find the best one to recover from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from kvorum.tools.doctor.findings import Certainty, Finding, command_line
from kvorum.tools.doctor.stopped import StoppedProgress

_CERTAIN, _LIKELY, _POSSIBLE = Certainty


def recovery(records: Sequence[StoppedProgress], given: int) -> Iterator[Finding]:
    """Find the member to recover from among those that can be started.

    `given` is how many directories were examined, damaged ones included.
    """
    clusters = {each.cluster_id for each in records}
    if len(clusters) > 1:
        yield Finding(
            "clusters-differ",
            _CERTAIN,
            "",
            "the directories belong to different clusters; examine those of one at a time",
            {
                "clusters": ", ".join(
                    f"{each.cluster_id:x} in {each.directory.data}" for each in records
                )
            },
        )
        return
    copies = Counter(each.member_id for each in records)
    for member, count in copies.items():
        if count > 1:
            yield Finding(
                "copies-of-one-member",
                _CERTAIN,
                f"{member:x}",
                "several directories are of the same member; only one of them may ever be started",
                {
                    "directories": ", ".join(
                        str(each.directory.data) for each in records if each.member_id == member
                    )
                },
            )
    yield from _lost(records)
    if records and given > 1:
        yield _recover_from(records, len(copies))


def _lost(records: Sequence[StoppedProgress]) -> Iterator[Finding]:
    """Find members that committed different entries, which proves that some were lost."""
    for one, other in combinations(records, 2):
        shared = one.checksums.keys() & other.checksums.keys()
        differing = [at for at in shared if one.checksums[at] != other.checksums[at]]
        # A leader holds every committed entry, so a log with a later term must be at least as long.
        older, newer = sorted((one, other), key=lambda each: each.last_term)
        is_shorter = older.last_term < newer.last_term and newer.last_index < older.commit
        if not differing and not is_shorter:
            continue
        first = min(differing, default=newer.last_index + 1)
        yield Finding(
            "committed-entries-lost",
            _CERTAIN,
            "",
            f"{one.directory.data} and {other.directory.data} hold different committed entries "
            f"from index {first} on: members went on after they had lost entries, as after a data "
            "directory was replaced by an older copy. Decide which history is to stay, keep a copy "
            "of the other one, and replace the members that have it by empty ones",
            {
                "first_index": first,
                "histories": "; ".join(
                    f"{each.directory.data} commit {each.commit} term {each.last_term}"
                    for each in (one, other)
                ),
            },
            (command_line("cp", "-a", str(older.directory.data), f"{older.directory.data}.copy"),),
        )


def _recover_from(records: Sequence[StoppedProgress], members: int) -> Finding:
    # The highest commit index wins; among equals, the log that would win an election.
    best = max(records, key=lambda each: (each.commit, each.last_term, each.last_index))
    voters = [each for each in best.members if not each.is_learner]
    quorum = len(voters) // 2 + 1
    # A database that was killed before its first commit knows no voters, so nobody knows a quorum.
    is_enough = bool(voters) and members >= quorum
    name = best.member.name if best.member is not None else ""
    known = "; ".join(
        f"{each.directory.data} commit {each.commit} term {each.last_term} last {each.last_index}"
        for each in records
    )
    return Finding(
        "recover-from",
        _CERTAIN,
        str(best.directory.data),
        f"of those that can be started, member {name or f'{best.member_id:x}'} has the highest "
        "committed index. "
        + (
            "These members are a quorum: start them as they are, and they agree by themselves"
            if is_enough
            else "If the others are lost for good, copy this directory, start a cluster of one "
            "from it, and add new members to that"
        ),
        {
            "member": f"{best.member_id:x}",
            "commit_index": best.commit,
            "last_term": best.last_term,
            "last_index": best.last_index,
            "voters": len(voters),
            "quorum": quorum,
            "members_here": members,
            "compared": known,
        },
        () if is_enough else _forced(best),
    )


def _forced(best: StoppedProgress) -> tuple[str, ...]:
    """Return the commands that start a one-member cluster with the member's own name and URLs."""
    words = [best.program, f"--data-dir={best.directory.data}"]
    if best.directory.wal is not None:
        words.append(f"--wal-dir={best.directory.wal}")
    if best.member is not None:
        peers, clients = ",".join(best.member.peer_urls), ",".join(best.member.client_urls)
        words += [f"--name={best.member.name}", f"--initial-advertise-peer-urls={peers}"]
        words += [f"--listen-peer-urls={peers}"]
        if clients:
            words += [f"--advertise-client-urls={clients}", f"--listen-client-urls={clients}"]
    return (
        command_line("cp", "-a", str(best.directory.data), f"{best.directory.data}.copy"),
        command_line(*words, "--force-new-cluster"),
    )
