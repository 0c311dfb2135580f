"""Flags of a member, from the command line to what they do: without a network, in virtual time."""

import dataclasses
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.membershippb import DowngradeInfoSetRequest
from kvorum.member.config import MemberConfig
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.flags import parse_arguments
from kvorum.process.settings.member import member_config
from kvorum.server.settings import server_settings
from kvorum.state.apply import requests
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles
from tests.member.harness import HEARTBEAT_SECONDS, Cluster
from tests.server.fronts import Fronts
from tests.server.rpc.harness import Harness, by_name

PUT = by_name("KV/Put").path


def by_flags(*arguments: str) -> dict[str, Any]:
    """Return the options of a member that these flags change."""
    usual = member_config(make_config({}), "d")
    changed = member_config(make_config(parse_arguments(arguments)[0]), "d")
    names = [each.name for each in dataclasses.fields(MemberConfig)]
    options = {name: getattr(changed, name) for name in names}
    return {name: each for name, each in options.items() if each != getattr(usual, name)}


@pytest.mark.parametrize("kept", [3, 6])
@pytest.mark.parametrize(("flag", "place"), [("max-wals", "wal"), ("max-snapshots", "snap")])
def test_so_many_old_files_are_kept(flag: str, place: str, kept: int) -> None:
    files = MemoryFiles()
    files.make_directory("/data")
    flags = ("--snapshot-count=20", "--snapshot-catchup-entries=1", f"--{flag}={kept}")
    options = by_flags(*flags) | {"segment_bytes": 1 << 16}
    harness = Harness(files, MemoryEnvironments(files), **options)
    found: list[int] = []
    for _ in range(2):
        for _ in range(150):
            harness.ask("KV/Put", pb.PutRequest(key=b"key", value=bytes(4096)))
        harness.pass_time(PRODUCTION.purge_seconds)
        names = files.list(f"/data/member/{place}")
        found.append(sum(name.endswith(f".{place}") for name in names))
    assert found == [kept] * 2


@pytest.mark.parametrize("milliseconds", [20, 100, 500])
def test_heartbeats_come_at_their_interval(milliseconds: int) -> None:
    ticks: list[bool] = []
    arguments = (f"--heartbeat-interval={milliseconds}", "--election-timeout=5000")
    harness = Harness(on_tick=ticks.append, **by_flags(*arguments))
    ticks.clear()
    harness.pass_time(10.0)
    assert len(ticks) == pytest.approx(10_000 / milliseconds, abs=1)


@pytest.mark.parametrize("seconds", [3, 10])
def test_an_election_comes_after_its_timeout(seconds: int) -> None:
    cluster = Cluster(3, **by_flags(f"--election-timeout={seconds * 1000}"))
    old = cluster.leader()
    others = [machine for machine in cluster if machine is not old]
    cluster.pass_time(1.0)
    began = cluster.now
    old.kill()
    cluster.wait(lambda: any(each.running.is_leader for each in others), 10.0 * seconds)
    # Up to one heartbeat had passed since the last word of the old leader.
    assert cluster.now - began >= seconds - 2 * HEARTBEAT_SECONDS


@pytest.mark.parametrize("asks_before", [True, False])
def test_a_member_that_was_cut_off_asks_before_it_disturbs(asks_before: bool) -> None:
    cluster = Cluster(3, **by_flags(f"--pre-vote={asks_before}"))
    leader, follower = cluster.leader(), cluster.follower()
    term = leader.running.term
    cluster.isolate(follower)
    cluster.pass_time(10.0)
    assert (follower.running.term == term) == asks_before
    cluster.heal()
    cluster.pass_time(10.0)
    assert (cluster.leader() is leader and leader.running.term == term) == asks_before


def revision_of(harness: Harness) -> int:
    return int(harness.ask("KV/Range", pb.RangeRequest(key=b"key")).header.revision)


@pytest.mark.parametrize("mode", ["revision", "periodic"])
def test_retention_is_a_number_or_a_time(mode: str) -> None:
    flags = (f"--auto-compaction-mode={mode}", "--auto-compaction-retention=10")
    harness = Harness(**by_flags(*flags))
    for _ in range(50):
        harness.ask("KV/Put", pb.PutRequest(key=b"key"))
    harness.pass_time(harness.member.config.retention_check_seconds + 1)
    # Ten hours have not passed.
    kept = {"revision": 10, "periodic": revision_of(harness)}[mode]
    oldest = revision_of(harness) - kept
    read = pb.RangeRequest(key=b"key", revision=oldest)
    if oldest:
        assert harness.ask("KV/Range", pb.RangeRequest(key=b"key", revision=oldest)).kvs
        read.revision -= 1
        assert harness.ask("KV/Range", read) == errors.COMPACTED
    else:
        read.revision = 2
        assert harness.ask("KV/Range", read).kvs


def test_clients_are_told_what_is_advertised() -> None:
    urls = ["http://a.example:1", "http://b.example:2"]
    harness = Harness(**by_flags(f"--advertise-client-urls={','.join(urls)}"))

    def told() -> list[str]:
        (member,) = harness.ask("Cluster/MemberList", pb.MemberListRequest()).members
        return list(member.clientURLs)

    harness.until(lambda: bool(told()))
    assert told() == urls


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_change_that_endangers_the_quorum(is_strict: bool) -> None:
    cluster = Fronts(3, **by_flags(f"--strict-reconfig-check={is_strict}"))
    leader = cluster.leader()
    cluster.pass_time(10.0)
    cluster.follower().kill()
    cluster.pass_time(10.0)
    request = pb.MemberAddRequest(peerURLs=["http://m3:2380"])
    answer = cluster.call(leader, "Cluster/MemberAdd", request)
    if is_strict:
        assert answer == errors.UNHEALTHY
    else:
        assert len(answer.members) == 4


@pytest.mark.parametrize("is_strict", [True, False])
def test_the_last_voter_is_never_removed(is_strict: bool) -> None:
    harness = Harness(**by_flags(f"--strict-reconfig-check={is_strict}"))
    request = pb.MemberAddRequest(peerURLs=["http://m1:2380"], isLearner=True)
    members = harness.ask("Cluster/MemberAdd", request).members
    (voter,) = (each for each in members if not each.isLearner)
    answer = harness.ask("Cluster/MemberRemove", pb.MemberRemoveRequest(ID=voter.ID))
    assert answer == errors.MEMBER_NOT_ENOUGH_STARTED
    assert not isinstance(harness.ask("KV/Put", pb.PutRequest(key=b"key")), Status)


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_so_many_learners_are_taken(limit: int) -> None:
    harness = Harness(**by_flags(f"--max-learners={limit}"))
    harness.pass_time(10.0)
    answers = [
        harness.ask(
            "Cluster/MemberAdd",
            pb.MemberAddRequest(peerURLs=[f"http://m{number}:2380"], isLearner=True),
        )
        for number in range(limit + 1)
    ]
    assert not [each for each in answers[:limit] if isinstance(each, Status)]
    assert answers[limit] == errors.TOO_MANY_LEARNERS


@pytest.mark.parametrize("seconds", [7, 30, 0])
def test_a_downgrade_ends_when_it_is_found_that_all_members_run_its_target(seconds: int) -> None:
    # Of the target's version are those that replaced newer ones.
    cluster = Cluster(3, **by_flags(f"--downgrade-check-time={seconds}s"))
    leader, follower = cluster.leader(), cluster.follower()
    request = DowngradeInfoSetRequest(enabled=True, ver="3.7.0")
    body = request.SerializeToString()
    cluster.success(leader, leader.propose(requests.DOWNGRADE_INFO_SET, body, request))
    member = leader.running
    versions = dict.fromkeys([each.id for each in member.state.cluster.members], "3.7.1")

    def is_under_way() -> set[bool]:
        return {each.running.state.cluster.downgrade_target is not None for each in cluster}

    for version in ("", "3.8.0"):
        member.peer_versions = versions | {follower.running.id: version}
        cluster.pass_time(40.0)
        assert is_under_way() == {True}
    member.peer_versions = versions
    if not seconds:
        cluster.pass_time(60.0)
        assert is_under_way() == {True}
        return
    until_look = seconds - cluster.now % seconds
    cluster.pass_time(until_look - 2 * HEARTBEAT_SECONDS)
    assert is_under_way() == {True}
    cluster.pass_time(4 * HEARTBEAT_SECONDS)
    assert is_under_way() == {False}


@pytest.mark.parametrize("entries", [10, 100])
def test_so_many_entries_stay_in_memory(entries: int) -> None:
    flags = ("--snapshot-count=20", f"--snapshot-catchup-entries={entries}")
    harness = Harness(**by_flags(*flags))
    for _ in range(300):
        harness.ask("KV/Put", pb.PutRequest(key=b"key"))
    harness.pass_time(10.0)
    log = harness.member.replica.node.raft.log
    assert log.last_index() - log.first_index() == pytest.approx(entries, abs=1)


def is_durable(harness: Harness) -> bool:
    backend = harness.member.state.backend
    return backend.durable_index == backend.applied_index


@pytest.mark.parametrize("seconds", [2, 60])
def test_the_database_is_committed_after_a_time(seconds: int) -> None:
    harness = Harness(**by_flags(f"--backend-batch-interval={seconds}s"))
    harness.pass_time(10.0 * seconds)
    harness.ask("KV/Put", pb.PutRequest(key=b"key"))
    harness.pass_time(seconds - 1)
    assert not is_durable(harness)
    harness.pass_time(seconds)
    assert is_durable(harness)


@pytest.mark.parametrize("writes", [50, 500])
def test_the_database_is_committed_after_so_many_writes(writes: int) -> None:
    flags = ("--backend-batch-interval=1h", f"--backend-batch-limit={writes}")
    harness = Harness(**by_flags(*flags))
    backend = harness.member.state.backend
    before = backend.durable_index
    puts = 0
    while backend.durable_index == before:
        harness.ask("KV/Put", pb.PutRequest(key=b"key"))
        puts += 1
    # A put writes its row, and now and then how far the log is applied.
    assert writes / 4 <= puts <= writes


@pytest.mark.parametrize("revisions", [1000, 10_000])
@pytest.mark.parametrize("seconds", [1, 10])
def test_a_compaction_removes_so_many_revisions_and_then_pauses(
    revisions: int, seconds: int
) -> None:
    flags = (
        f"--compaction-batch-limit={revisions}",
        f"--compaction-sleep-interval={seconds}s",
    )
    harness = Harness(**by_flags(*flags))
    harness.begin_all(PUT, [pb.PutRequest(key=b"key").SerializeToString()] * 3500)
    harness.settle()
    harness.pass_time(1.0)
    request = pb.CompactionRequest(revision=revision_of(harness), physical=True)
    call = harness.begin(by_name("KV/Compact").path, request)
    began = harness.now
    harness.until(lambda: call in harness.edge.replies, 20.0 * seconds)
    pauses = (harness.now - began) / seconds
    assert (pauses > 2.9) == (revisions == 1000)


@pytest.mark.parametrize("seconds", [5, 50])
def test_watchers_hear_of_progress_from_time_to_time(seconds: int) -> None:
    harness = Harness(**by_flags(f"--watch-progress-notify-interval={seconds}s"))
    watch = harness.open("Watch/Watch")
    create = pb.WatchCreateRequest(key=b"key", progress_notify=True)
    watch.send(pb.WatchRequest(create_request=create))
    (created,) = watch.received()
    assert created.created
    harness.pass_time(seconds - 1)
    assert watch.received() == []
    harness.pass_time(5.0 * seconds)
    assert 2 <= len(watch.received()) <= 6


def test_a_survivor_is_forced_to_be_alone() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.success(leader, leader.put(b"key"))
    cluster.pass_time(1.0)
    for machine in list(cluster):
        machine.kill()
    survivor = cluster[0]
    for flags, is_leader in (((), False), (("--force-new-cluster",), True)):
        survivor.config = dataclasses.replace(survivor.config, **by_flags(*flags))
        survivor.start()
        cluster.pass_time(10.0)
        assert survivor.running.is_leader == is_leader
        survivor.kill()


@pytest.mark.parametrize("seconds", [1, 4])
def test_a_request_counts_as_slow_after_a_time(seconds: int) -> None:
    given, _ = parse_arguments([f"--warning-unary-request-duration={seconds}s"])
    cluster = Fronts(3)
    cluster.leader()
    machine = cluster[0]
    machine.kill()
    machine.settings = dataclasses.replace(
        machine.settings,
        slow_request_seconds=server_settings(make_config(given)).slow_request_seconds,
    )
    machine.start()
    cluster.isolate(machine)
    cluster.begin(machine, "KV/Put", pb.PutRequest(key=b"key"))

    def is_told() -> bool:
        return any("slow request" in message for message, _ in machine.logger.lines)

    cluster.pass_time(seconds - 2 * HEARTBEAT_SECONDS)
    assert not is_told()
    cluster.pass_time(4 * HEARTBEAT_SECONDS)
    assert is_told()


@pytest.mark.parametrize(("seconds", "passed", "is_checked"), [(5, 15.0, True), (500, 90.0, False)])
def test_hashes_of_compactions_are_compared_from_time_to_time(
    seconds: int, passed: float, is_checked: bool
) -> None:
    cluster = Cluster(3, **by_flags(f"--compact-hash-check-time={seconds}s"))
    leader = cluster.leader()
    for _ in range(10):
        cluster.success(leader, leader.put(b"key"))
    body = pb.CompactionRequest(revision=5).SerializeToString()
    cluster.success(leader, leader.propose(requests.COMPACTION, body))
    cluster.pass_time(passed)
    assert leader.running.corruption.checked_revision == (5 if is_checked else 0)
