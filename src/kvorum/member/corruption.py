"""Members compare hashes of their data; a difference raises the CORRUPT alarm.

There are three checks, each enabled by an option. A restarted member compares itself with its
peers and refuses to serve if it differs. The leader periodically compares all members at its
current revision and, at little cost, at compacted revisions, whose hashes all members keep. The
checks skip a peer that does not answer or is at another compaction.

The hash that a compaction keeps and the one computed at its revision before the compaction is
applied have different definitions: where every key is deleted they differ. The checks accuse no
member that may have sent the one instead of the other.
"""

from __future__ import annotations

import json
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from kvorum.api.errors import COMPACTED, FUTURE_REV, Code, Status, StatusError
from kvorum.api.pb.etcdserverpb import AlarmRequest
from kvorum.member import log_lines
from kvorum.member.errors import MemberStopped
from kvorum.member.hashing import hash_kv
from kvorum.member.peer_requests import HASH_KV_PATH, parse_hash
from kvorum.member.waits import Ask, Propose, ReadIndex
from kvorum.state.apply import requests
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.apply.callers import MEMBER

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvorum.member.hashing import Hashed
    from kvorum.member.member import Member
    from kvorum.member.parts import Part
    from kvorum.member.waits import Steps
    from kvorum.state.mvcc.hashes import HashKV

ATTEMPTS_MAX = 3
"""How often a peer may lack a comparable hash before the leader stops asking it about a
compaction: a restarted peer reads all its rows each time, and etcd 3.5.1 never has the hash."""

_ACTIVATE = 1
_UNANSWERED = Status(Code.UNAVAILABLE, "no answer")


class Compared:
    """The peers' answers about one compaction."""

    __slots__ = ("agreed", "attempts")

    def __init__(self) -> None:
        self.agreed: set[int] = set()
        # How often each peer lacked a comparable hash.
        self.attempts: Counter[int] = Counter()


class Checks:
    """The schedule of the leader's checks, and their progress."""

    __slots__ = (
        "_compact_at",
        "_periodic_at",
        "_running",
        "checked_revision",
        "compared",
        "incomparable",
    )

    def __init__(self, now: float, periodic_seconds: float, compact_seconds: float) -> None:
        self._periodic_at = now + (periodic_seconds or inf)
        self._compact_at = now + (compact_seconds or inf)
        self._running: list[Callable[[Member], Part[None]]] = []
        # All members agreed on the hash of this compaction, which covers those before.
        self.checked_revision = 0
        # By revision of the compactions whose hashes are kept.
        self.compared: dict[int, Compared] = {}
        # Peers that a log line already called incomparable.
        self.incomparable: set[int] = set()

    def run(self, member: Member, now: float) -> None:
        """Start the checks that are due; a duty."""
        if now >= self._periodic_at:
            self._periodic_at = now + member.config.corrupt_check_seconds
            self._begin(member, _compare_now)
        if now >= self._compact_at:
            self._compact_at = now + member.config.compact_hash_check_seconds
            self._begin(member, _compare_compactions)

    def _begin(self, member: Member, check: Callable[[Member], Part[None]]) -> None:
        # A check may take longer than its interval; a second run does not start meanwhile.
        if member.is_leader and check not in self._running:
            self._running.append(check)
            member.start(None, MEMBER, self._steps(member, check))

    def _steps(self, member: Member, check: Callable[[Member], Part[None]]) -> Steps:
        try:
            yield from check(member)
        except StatusError as error:
            member.logger.warning(f"cannot compare hashes with the peers: {error.status.text}")
        finally:
            self._running.remove(check)
        return None


def initial_check(member: Member) -> Part[None]:
    """Compare this member with its peers before it serves; raises MemberStopped if it differs."""
    try:
        own = (yield from hash_kv(member, 0)).found
    except StatusError as error:
        raise MemberStopped(f"cannot hash what this member holds: {error.status.text}") from error
    answers = yield from _hashes_of_peers(member, own.revision)
    different = []
    for peer, answer in answers:
        if not isinstance(answer, Status):
            if answer.found.hash == own.hash:
                continue
            is_other = _differs(answer.found, own)
            if is_other and not (yield from _has_compacted(peer, own.revision)):
                different.append(peer)
        member.logger.warning(f"own hash is {own}, member {peer:x} reports {answer}")
    if different:
        raise MemberStopped(
            f"{member.id:x} found data inconsistency with peers: at revision {own.revision} its "
            f"hash is {own.hash}, that of {', '.join(f'{peer:x}' for peer in different)} is not. "
            f"Remove this member and add it again with an empty directory"
        )
    member.logger.info(f"compared the hash at revision {own.revision}: no corruption")


def _compare_now(member: Member) -> Part[None]:
    first = yield from hash_kv(member, 0)
    answers = yield from _hashes_of_peers(member, first.found.revision)
    failure: Status | None = yield ReadIndex()
    if failure is not None:
        raise StatusError(failure)
    second = yield from hash_kv(member, 0)
    own, later = first.found, second.found
    accused = []
    if own[1:] == later[1:] and own.hash != later.hash:
        member.logger.error(f"the hash of this member changed from {own} to {later}")
        accused.append(member.id)
    for peer, answer in answers:
        if isinstance(answer, Status):
            continue
        reason = _difference(own, later, second.store_revision, answer)
        if reason is not None:
            member.logger.error(f"member {peer:x} {reason}: it reports {answer}, own hash is {own}")
            accused.append(peer)
    # Accuse one member at a time: the first may explain the others.
    for each in accused[:1]:
        yield _alarm(each)


def _difference(own: HashKV, later: HashKV, revision: int, answer: Hashed) -> str | None:
    """Return what in a peer's answer is impossible; `later` and `revision` are newer than it.

    None means that the answer is plausible.
    """
    if answer.store_revision > revision:
        return f"is ahead of the leader's revision {revision}"
    if answer.found.compact_revision > later.compact_revision:
        return f"has compacted more than the leader, which is at {later.compact_revision}"
    # After a compaction at `own.revision` the peer may have hashed only the rows that remain.
    if later.compact_revision < own.revision and _differs(answer.found, own):
        return "has another hash at the same revision and compaction"
    return None


def _compare_compactions(member: Member) -> Part[None]:
    """Compare the newest compaction whose hash all members know."""
    checks = member.corruption
    kept = member.state.store.compaction.hashes()
    known = checks.compared
    checks.compared = {own.revision: known.get(own.revision) or Compared() for own in kept}
    count = 0
    for own in kept:
        if own.revision <= checks.checked_revision:
            break
        count += 1
        peers = [each.id for each in member.state.cluster.members if each.id != member.id]
        owners = yield from _owners(member, own, peers)
        if len(owners) > 1:
            yield from _accuse_minority(member, own, owners, len(peers) + 1)
            return
        if len(owners[own.hash]) == len(peers) + 1:
            checks.checked_revision = own.revision
            break
    log_lines.log_hash_check_end(member.replica, count)


def _owners(member: Member, own: HashKV, peers: list[int]) -> Part[dict[int, list[int]]]:
    """Return the members by their hash of a compaction, leaving out members without one."""
    checks = member.corruption
    compared = checks.compared[own.revision]
    owners = {own.hash: [member.id, *(peer for peer in peers if peer in compared.agreed)]}
    for peer in peers:
        if peer in compared.agreed or compared.attempts[peer] >= ATTEMPTS_MAX:
            continue
        reported = yield from _kept_hash(peer, own)
        if reported == COMPACTED:
            compared.attempts[peer] += 1
            if compared.attempts[peer] == ATTEMPTS_MAX and peer not in checks.incomparable:
                checks.incomparable.add(peer)
                member.logger.info(
                    f"member {peer:x} has no hash of the compaction at {own.revision} to compare"
                )
        elif not isinstance(reported, Status):
            owners.setdefault(reported, []).append(peer)
            if reported == own.hash:
                compared.agreed.add(peer)
                checks.incomparable.discard(peer)
    return owners


def _kept_hash(peer: int, own: HashKV) -> Part[int | Status]:
    """Ask a peer for its hash of a compaction; COMPACTED if its answer cannot be compared."""
    answer = yield from _hash_of_peer(peer, own.revision)
    if not isinstance(answer, Status) and _differs(answer.found, own):
        if not (yield from _has_compacted(peer, own.revision)):
            return FUTURE_REV
        # The peer has applied the compaction by now, so it answers with the kept hash.
        answer = yield from _hash_of_peer(peer, own.revision)
    if isinstance(answer, Status):
        return answer
    return answer.found.hash if answer.found.compact_revision == own.compact_revision else COMPACTED


def _differs(found: HashKV, own: HashKV) -> bool:
    return found.compact_revision == own.compact_revision and found.hash != own.hash


def _has_compacted(peer: int, revision: int) -> Part[bool]:
    """Return whether a peer reports a compaction at this revision or a later one as applied."""
    current = yield from _hash_of_peer(peer, 0)
    return not isinstance(current, Status) and current.found.compact_revision >= revision


def _accuse_minority(
    member: Member, own: HashKV, owners: dict[int, list[int]], members: int
) -> Part[None]:
    """Raise the alarm for members that differ from the majority; for member 0 without one."""
    for value, holders in owners.items():
        names = ", ".join(f"{each:x}" for each in holders)
        member.logger.error(f"compaction at {own.revision}: hash {value} at {names}")
    if not any(len(holders) > members // 2 for holders in owners.values()):
        yield _alarm(0)
        return
    for holders in owners.values():
        if len(holders) <= members // 2:
            for each in holders:
                yield _alarm(each)


def _hashes_of_peers(member: Member, revision: int) -> Part[list[tuple[int, Hashed | Status]]]:
    """Ask every peer in turn for its hash; a Status stands for no hash."""
    answers: list[tuple[int, Hashed | Status]] = []
    for peer in [each.id for each in member.state.cluster.members if each.id != member.id]:
        answer = yield from _hash_of_peer(peer, revision)
        answers.append((peer, answer))
    return answers


def _hash_of_peer(peer: int, revision: int) -> Part[Hashed | Status]:
    body = json.dumps({"revision": revision}, separators=(",", ":")).encode()
    answer: bytes | Status | None = yield Ask(peer, "GET", HASH_KV_PATH, body)
    return parse_hash(answer) if isinstance(answer, bytes) else answer or _UNANSWERED


def _alarm(member_id: int) -> Propose:
    request = AlarmRequest(memberID=member_id, alarm=AlarmType.CORRUPT, action=_ACTIVATE)  # type: ignore[arg-type]
    return Propose(requests.ALARM, request.SerializeToString(), request)
