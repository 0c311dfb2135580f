"""Incidents of the field with real processes: each test is named for etcd's issue.

What a simulated clock, disk or network cannot show: processes that the system stops, kills in the
middle of a call, or starts on files that were changed meanwhile.
"""

import mmap
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import grpc
import pytest

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.reads import RETRY_SECONDS
from tests.cluster.corruption import alarms, tamper
from tests.cluster.load import load
from tests.cluster.members import PATIENT, Cluster, Member, grant, running_cluster
from tests.cluster.starvation import StarvedError, again_if_starved
from tests.incidents.conftest import FREQUENT
from tests.server.rpc.oracle import status_of
from tests.waiting import WAIT_SECONDS_MAX, until

EVERYTHING = pb.RangeRequest(key=b"\0", range_end=b"\0")
ROUNDS = 3
ROUNDS_MAX = 5 * ROUNDS
"""So often a busy machine may spoil a round by an election in between."""
PAGE_BYTES = 4096


# Paused leaders.


def test_20418_a_leader_that_slept_answers_nothing_old(processes: Cluster) -> None:
    """Neither to clients of its own, nor to followers that ask it for an index."""
    rounds = 0
    for number in range(ROUNDS_MAX):
        old = processes.leader()
        others = processes.others(old)
        old.put(b"read", b"before %d" % number)
        old.pause()
        read = pb.RangeRequest(key=b"read")
        early = [each.client.begin("KV/Range", read) for _ in range(10) for each in others]
        processes.leader(others).put(b"read", b"after %d" % number)
        late = [each.client.begin("KV/Range", read) for _ in range(10) for each in processes]
        old.resume()
        late += [each.client.begin("KV/Range", read) for _ in range(10) for each in processes]
        for call in early:
            if call.exception() is None:
                assert call.result().kvs[0].value in (b"before %d" % number, b"after %d" % number)
        answered = 0
        for call in late:
            if call.exception() is None:
                assert call.result().kvs[0].value == b"after %d" % number
                answered += 1
            else:
                assert status_of(call.exception()).code in (
                    Code.UNAVAILABLE,
                    Code.DEADLINE_EXCEEDED,
                )
        # If there are fewer, another election has ended them, as on a busy machine.
        rounds += answered >= 20
        if rounds == ROUNDS:
            return
        processes.settle()
    raise AssertionError(f"of {ROUNDS_MAX} rounds, reads were answered in {rounds} only")


@pytest.mark.long
def test_21378_a_late_answer_is_not_that_to_a_new_read(tmp_path: Path) -> None:
    """Messages of the leader take longer than a follower waits before it asks again.

    So every read but the first finds answers on their way to those before it.
    """
    with running_cluster(tmp_path, "kvorum", 3) as cluster:
        # Late bursts of heartbeats make nobody campaign.
        cluster.be_patient()
        leader = cluster.leader()
        far = cluster.others(leader)[0]
        cluster.network.slow(leader.node, far.node, 2 * RETRY_SECONDS)
        for number in range(4):
            leader.put(b"read", b"%d" % number)
            found = until("it reads", lambda: read(far))
            assert found == b"%d" % number


def read(member: Member) -> bytes | None:
    """Read a key; None while the member knows no leader."""
    answer = member.ask("KV/Range", pb.RangeRequest(key=b"read"))
    return None if isinstance(answer, Status) else answer.kvs[0].value


class Renewals(threading.Thread):
    """Renews a lease at some members in turn until it is told to end; keeps the worst answer."""

    PACE_SECONDS = 0.1

    def __init__(self, members: list[Member], lease: int, granted_at: float) -> None:
        super().__init__()
        self._members = members
        self._lease = lease
        self._granted_at = granted_at
        self._ending = threading.Event()
        self.renewed = 0
        self.lowest = lease
        self.gap_seconds_max = 0.0
        """Longest time from when one renewal was asked for until the next one was answered."""

    def run(self) -> None:
        number = 0
        last = self._granted_at
        while not self._ending.wait(self.PACE_SECONDS):
            member = self._members[number % len(self._members)]
            number += 1
            asked = time.monotonic()
            talk = member.client.talk("Lease/LeaseKeepAlive", timeout=2)
            talk.say(pb.LeaseKeepAliveRequest(ID=self._lease))
            with suppress(grpc.RpcError):
                self.lowest = min(self.lowest, talk.hear().TTL)
                self.renewed += 1
                self.gap_seconds_max = max(self.gap_seconds_max, time.monotonic() - last)
                last = asked
            talk.close()

    def end(self) -> None:
        self._ending.set()
        self.join()


@pytest.mark.long
@again_if_starved
def test_15247_a_leader_that_slept_neither_renews_nor_revokes(processes: Cluster) -> None:
    """Issues 12528 and 16822 too: it sleeps for longer than leases last."""
    old = processes.settle()
    others = processes.others(old)
    granted = 8
    granted_at = time.monotonic()
    kept, left, revoked = grant(old, granted), grant(old, granted), grant(old)
    for lease in (kept, left, revoked):
        put = pb.PutRequest(key=b"leased/%d" % lease, lease=lease)
        if old.answer("KV/Put", put, done=errors.LEASE_NOT_FOUND) == errors.LEASE_NOT_FOUND:
            raise StarvedError(f"a lease of {granted} s has ended before its key was put")
    # By its own reckoning two end while it sleeps, and the third one does not.
    asleep = {}
    for lease in (left, revoked):
        renewal = pb.LeaseKeepAliveRequest(ID=lease)
        asleep[lease], answer = old.talk("Lease/LeaseKeepAlive", renewal)
        if not answer.TTL:
            raise StarvedError(f"a lease of {granted} s has ended before it was renewed")
    old.pause()
    for lease, talk in asleep.items():
        talk.say(pb.LeaseKeepAliveRequest(ID=lease))
    renewals = Renewals(others, kept, granted_at)
    renewals.start()
    try:
        new = processes.leader(others)
        ended = new.settled("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=revoked))
        # It has ended by a call before if nobody answered that.
        assert not isinstance(ended, Status) or ended == errors.LEASE_NOT_FOUND, ended
        until("the other lease has ended", lambda: new.get(b"leased/%d" % left) is None)
        before = renewals.renewed
        old.resume()
        for talk in asleep.values():
            with suppress(grpc.RpcError):
                assert talk.hear().TTL == 0, "it renewed what has ended"
            talk.close()
        # It has caught up, and had time to do what it meant to do.
        revision = new.put(b"awake").header.revision
        until("it has caught up", lambda: old.revision() >= revision)
        until("renewals go on", lambda: renewals.renewed >= before + 20)
        is_kept = new.get(b"leased/%d" % kept) is not None
        assert old.get(b"leased/%d" % left) is None
        processes.check_agreement()
    finally:
        renewals.end()
    gap, lowest = renewals.gap_seconds_max, renewals.lowest
    if gap >= granted and (lowest != granted or not is_kept):
        raise StarvedError(f"a lease of {granted} s was renewed after {gap:.1f} s")
    assert is_kept, "it revoked what others renewed"
    assert lowest == granted, "a lease that was renewed in time has ended"


# Processes that are killed.


@pytest.mark.long
def test_13766_kills_under_load_leave_equal_members(tmp_path: Path) -> None:
    """At any moment, one member or all; `load` compares keys, leases, members and hashes.

    Commits are rare enough for every kill to come between two of them.
    """
    random = Random(13766)
    flags = ("--snapshot-count=100", "--snapshot-catchup-entries=20")
    with running_cluster(tmp_path, "kvorum", 3, *flags) as cluster, load(cluster, 3) as work:
        for number in range(6):
            work.await_progress(random.randint(20, 40))
            victims = list(cluster) if number == 3 else [random.choice(list(cluster))]
            for victim in victims:
                victim.kill()
            for victim in victims:
                victim.start()


def compact(member: Member, revision: int, *, physical: bool = False) -> None:
    request = pb.CompactionRequest(revision=revision, physical=physical)
    answer = member.settled("KV/Compact", request)
    # So the answer is if a call before, which nobody answered, has compacted it.
    assert not isinstance(answer, Status) or answer == errors.COMPACTED, answer


def finish_compactions(cluster: Cluster, revision: int) -> None:
    """Wait until every member is done: one that is not keeps no hash of the next compaction."""
    for member in cluster:
        compact(member, revision, physical=True)


def test_13766_a_member_that_differs_is_found_by_default(tmp_path: Path) -> None:
    """No feature is switched on; only the time is short that the leader lets pass."""
    with running_cluster(tmp_path, "kvorum", 3, "--compact-hash-check-time=1s") as cluster:
        leader = cluster.leader()
        for number in range(10):
            leader.put(b"key/%d" % number, b"true")
            revision = leader.revision()
            compact(leader, revision)
        finish_compactions(cluster, revision)
        for member in cluster:
            assert not member.logged("compaction at"), "nothing is told of members that agree"
        victim = cluster.followers()[0]
        victim.terminate()
        tamper(victim, b"key/7", b"false")
        # It had better not lead the others, who are right.
        victim.flags = (PATIENT,)
        cluster.settle()
        finish_compactions(cluster, revision)
        leader = cluster.leader()
        assert not alarms(leader)
        compact(leader, leader.put(b"more").header.revision)
        found = until("the alarm is raised", lambda: alarms(leader))
        assert found == [(victim.id, pb.CORRUPT)]


def one_member(directory: Path, *flags: str) -> Any:
    return running_cluster(directory, "kvorum", 1, *flags)


def restarted(cluster: Cluster) -> Member:
    """Kill the only member, and start it again."""
    cluster[0].kill()
    cluster.settle()
    return cluster[0]


def test_14370_one_member_is_killed_when_it_has_answered(tmp_path: Path) -> None:
    """Nobody else could bring it back: `tests/process/test_crash.py` does it fifty times."""
    with one_member(tmp_path) as cluster:
        member = cluster[0]
        expected = {}
        for number in range(8):
            calls = [
                member.client.begin("KV/Put", pb.PutRequest(key=b"%d/%d" % (number, each)))
                for each in range(20)
            ]
            # The first answers; the process ends with the others on their way.
            expected[b"%d/0" % number] = calls[0].result().header.revision
            member = restarted(cluster)
            for call in calls:
                call.cancel()
            kvs = member.answer("KV/Range", EVERYTHING).kvs
            assert expected.items() <= {kv.key: kv.mod_revision for kv in kvs}.items()


def removed(member: Member) -> int:
    """Return how many revisions compactions have removed since the start."""
    with urlopen(f"http://{member.address}/metrics", timeout=WAIT_SECONDS_MAX) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("etcd_debugging_mvcc_db_compaction_keys_total "):
                return int(float(line.split()[1]))
    raise AssertionError("there is no such metric")


@pytest.mark.long
def test_17780_a_kill_in_a_compaction_leaves_the_revision(tmp_path: Path) -> None:
    """All keys are deleted, and the last deletion is compacted."""
    keys = 2000
    slowly = ("--compaction-sleep-interval=200ms", f"--max-txn-ops={keys}")
    with one_member(tmp_path, *slowly, "--compaction-batch-limit=1", *FREQUENT) as cluster:
        member = cluster[0]
        puts = [pb.RequestOp(request_put=pb.PutRequest(key=b"%d" % key)) for key in range(keys)]
        first = member.answer("KV/Txn", pb.TxnRequest(success=puts)).header.revision
        deletion = pb.DeleteRangeRequest(key=b"\0", range_end=b"\0")
        last = member.answer("KV/DeleteRange", deletion).header.revision
        compaction = pb.CompactionRequest(revision=last, physical=True)
        call = member.client.begin("KV/Compact", compaction)
        until("some are removed", lambda: removed(member))
        assert not call.done(), "it was over before the kill"
        assert restarted(cluster).revision() == last
        assert call.exception() is not None
        old = pb.RangeRequest(key=b"0", revision=first)
        assert member.ask("KV/Range", old) == errors.COMPACTED
        # The compaction goes on where it was, and behind it comes another.
        member.put(b"again")
        last = member.answer("KV/DeleteRange", deletion).header.revision
        member.answer("KV/Compact", pb.CompactionRequest(revision=last, physical=True))
        assert removed(member) > 0
        assert restarted(cluster).revision() == last
        assert member.put(b"next").header.revision == last + 1


def look(directory: Path) -> list[tuple[str, int, bytes]]:
    """Return which files there are, and what the one says that names the database in use."""
    found = []
    for path in sorted(directory.iterdir()):
        with suppress(FileNotFoundError):
            content = path.read_bytes() if path.name == "CURRENT" else b""
            found.append((path.name, path.stat().st_ino, content))
    return found


def until_changed(directory: Path, call: Any) -> None:
    """Wait until a directory is another, or a call has ended."""
    before = look(directory)
    until(f"{directory} changes", lambda: call.done() or look(directory) != before)


@pytest.mark.long
def test_14685_a_kill_in_a_defragmentation_loses_nothing(tmp_path: Path) -> None:
    """The process ends when the directory of the database has changed once, twice, and so on."""
    with one_member(tmp_path, "--backend-batch-interval=5ms") as cluster:
        member = cluster[0]
        for first in range(40):
            member.put(b"k/%d" % first, bytes(50_000))
        member.answer("KV/DeleteRange", pb.DeleteRangeRequest(key=b"k/1", range_end=b"k/2"))
        before = member.answer("KV/Range", EVERYTHING)
        backend = member.data / "member" / "backend"

        killed = 0
        for changes in (1, 2, 3, 4) * ROUNDS_MAX:
            call = member.client.begin("Maintenance/Defragment", pb.DefragmentRequest())
            for _ in range(changes):
                until_changed(backend, call)
            killed += not call.done()
            member = restarted(cluster)
            call.cancel()
            after = member.answer("KV/Range", EVERYTHING)
            assert list(after.kvs) == list(before.kvs)
            assert after.header.revision == before.header.revision
            # On a busy machine all may have ended before they were seen to begin.
            if changes == 4 and killed:
                break
        assert killed, "every defragmentation was over before the kill"
        member.answer("Maintenance/Defragment", pb.DefragmentRequest())
        assert list(member.answer("KV/Range", EVERYTHING).kvs) == list(before.kvs)


def is_sent_a_snapshot(member: Member, size: int, revision: int) -> bool:
    """Wait until a member has a revision; tell whether it was sent a snapshot for it."""

    def is_sent() -> bool:
        return member.logged("received the snapshot", size) > 0

    until("it has caught up", lambda: is_sent() or member.state().header.revision >= revision)
    return is_sent()


@pytest.mark.long
def test_18055_one_snapshot_after_the_other(processes: Cluster) -> None:
    """Each from another leader, as one that has sent a snapshot keeps entries for a while."""
    processes.be_patient()
    number = 0
    for _ in range(ROUNDS_MAX):
        behind = processes.followers()[number % 2]
        others = processes.others(behind)
        for other in others:
            processes.network.sever(behind.node, other.node)
        leader = processes.leader(others)
        size = behind.log_size()
        leader.put_together(400, bytes(5000))
        revision = leader.revision()
        processes.network.mend()
        if not is_sent_a_snapshot(behind, size, revision):
            # This leader has sent a snapshot not long ago.
            processes.settle()
            continue
        if number == 1:
            # Before it is installed, or while it is, or after: it is sent or installed again.
            behind.kill()
        processes.settle()
        processes.check_agreement()
        number += 1
        if number == ROUNDS:
            return
        processes.lead(processes.others(processes.leader())[(number - 1) % 2])
    raise AssertionError(f"{number} snapshots were sent in {ROUNDS_MAX} rounds")


# Files that were changed.


def tear(member: Member, written: int) -> None:
    """Begin the record of a batch behind the end of a log, as if the power had failed then."""
    segment = max((member.data / "member" / "wal").glob("*.wal"))
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        end = len(content)
        while end >= PAGE_BYTES and content[end - PAGE_BYTES : end] == bytes(PAGE_BYTES):
            end -= PAGE_BYTES
        end = len(content[:end].rstrip(b"\0"))
        end += -end % 8
        # Its first word promises more than there is.
        torn = (PAGE_BYTES).to_bytes(8, "little") + Random(written).randbytes(PAGE_BYTES)
        content[end : end + written] = torn[:written]


@pytest.mark.long
def test_6378_a_torn_batch_does_not_stop_a_restart(tmp_path: Path) -> None:
    """What was being written came to the disk in part; issue 6379 is its twin."""
    with one_member(tmp_path) as cluster:
        member = cluster[0]
        revision = member.put(b"k", b"v").header.revision
        for written in (4, 300, 1500):
            member.kill()
            tear(member, written)
            size = member.log_size()
            cluster.settle()
            assert member.logged("cut off the end of the log", size) == 1
            assert list((member.data / "member" / "wal").glob("*.broken"))
            assert member.revision() == revision
            revision = member.put(b"k", b"%d" % written).header.revision
        assert restarted(cluster).get(b"k") == b"1500"


def test_20271_damage_in_the_database_is_found(tmp_path: Path) -> None:
    """A bit flips in the file: no client is given the result, the operator is told where."""
    mark = b"the value that rots"
    with one_member(tmp_path, "--backend-batch-interval=5ms") as cluster:
        member = cluster[0]
        for number in range(30):
            member.put(b"k/%d" % number, mark + b" %d" % number)
        member.terminate()
        (database,) = (
            path
            for path in (member.data / "member" / "backend").iterdir()
            if path.is_file() and mark in path.read_bytes()
        )
        # Pages that no longer count may hold it as well, so every copy of it is changed.
        content = database.read_bytes()
        database.write_bytes(content.replace(mark + b" 17", mark + b" 16"))
        size = member.log_size()
        member.start()

        def ends() -> bool:
            if not member.is_running:
                return True
            told = member.client.ask("KV/Range", EVERYTHING, timeout=1.0)
            assert isinstance(told, Status), "it told what the value has become"
            return False

        until("it stops", ends)
        assert member.wait() == 1
        assert member.logged(str(database), size), member.log_tail()
        assert member.logged("is damaged", size), member.log_tail()


# Watchers that cannot keep up.


def test_17529_a_watcher_that_does_not_read_loses_nothing(tmp_path: Path) -> None:
    """Megabytes wait for it, it asks for progress amid them, and then takes everything."""
    with one_member(tmp_path) as cluster:
        member = cluster[0]
        value = bytes(20_000)
        watch = member.client.watch(key=b"k/", range_end=b"k0", progress_notify=True)
        revisions: list[int] = []
        for _ in range(10):
            calls = [
                member.client.begin("KV/Put", pb.PutRequest(key=b"k/%d" % each, value=value))
                for each in range(60)
            ]
            revisions += [call.result().header.revision for call in calls]
            watch.say(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
        told: list[int] = []
        complete = 0
        while len(told) < len(revisions):
            response = watch.hear()
            assert not response.canceled
            if response.events:
                assert response.events[0].kv.mod_revision > complete
                told += [event.kv.mod_revision for event in response.events]
            else:
                complete = response.header.revision
                assert not told or complete >= told[-1]
        assert told == sorted(revisions)
        watch.close()
