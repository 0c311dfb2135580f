"""Both tools at one cluster of three members: whole, without one of them, without a majority."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.members import Cluster, running_cluster, until
from tests.ctl.duel import Outcome, run_here
from tests.etcd import binary, is_target


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not is_target():
        pytest.skip("etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def compare(endpoints: list[str], *words: str) -> Outcome:
    """Run a command line in both tools, demand the same outcome, return ours.

    Lines are sorted: whoever is healthy first is shown first.
    """
    arguments = [f"--endpoints={','.join(endpoints)}", *words]
    done = subprocess.run([str(binary("etcdctl")), *arguments], capture_output=True, timeout=60)
    theirs = Outcome(done.returncode, done.stdout, done.stderr)
    ours = run_here(arguments)
    assert _plain(ours) == _plain(theirs)
    return ours


def _plain(outcome: Outcome) -> tuple[int, list[bytes], list[bytes]]:
    def lines(data: bytes) -> list[bytes]:
        data = re.sub(rb"\b[0-9.]+(?:\xc2\xb5s|[mn]?s)\b", b"<took>", data)
        # Indexes and sizes move on by themselves, and columns with them.
        data = re.sub(rb"\b\d+ [kM]?B\b|\d+%|\b\d{1,4}\b(?=[, ])", b"<number>", data)
        data = re.sub(rb" +|(?:\xe2\x94\x80)+", b" ", data)
        return sorted(each for each in data.splitlines() if not each.startswith((b"{", b"Hint")))

    return outcome.code, lines(outcome.out), lines(outcome.err)


def test_all_members_are_asked(cluster: Cluster) -> None:
    cluster.settle()
    every = [each.address for each in cluster]
    for form in ("simple", "table"):
        for endpoints, options in ((every, ()), (every[:1], ("--cluster",))):
            for words in (("health",), ("status",), ("hashkv", "--rev=1")):
                outcome = compare(endpoints, "endpoint", *words, *options, "-w", form)
                assert outcome.code == 0
                assert all(each.encode() in outcome.out for each in every)
    compare(every, "member", "list", "-w=table")
    compare(every, "defrag")
    compare(every[1:2], "defrag", "--cluster")
    compare(every, "snapshot", "save", "/nonexistent/file")


def test_the_leader_moves(cluster: Cluster) -> None:
    cluster.settle()
    leader = cluster.leader()
    first, second = (each for each in cluster if each is not leader)
    followers = [first.address, second.address]
    target = f"{first.state().header.member_id:x}"
    assert compare(followers, "move-leader", target).code == 128
    assert compare([leader.address], "move-leader", "123").code == 1
    every = [each.address for each in cluster]
    outcome = run_here([f"--endpoints={','.join(every)}", "move-leader", target])
    before = f"{leader.state().header.member_id:x}"
    assert outcome.out == f"Leadership transferred from {before} to {target}\n".encode()
    assert outcome.code == 0
    assert cluster.leader() is first


@pytest.mark.long
def test_a_member_is_away(cluster: Cluster) -> None:
    cluster.settle()
    leader = cluster.leader()
    away = next(each for each in cluster if each is not leader)
    away.kill()
    every = [each.address for each in cluster]
    for words in (("health",), ("health", "--cluster"), ("status", "--cluster"), ("hashkv",)):
        outcome = compare(every, "endpoint", *words, "--command-timeout=1s")
        assert outcome.code == 1
        assert away.address.encode() in outcome.err
    compare(every, "defrag", "--command-timeout=1s")
    for command in (("put", "away", "1"), ("get", "away")):
        assert compare(every, *command).code == 0
    away.start()


@pytest.mark.long
def test_a_majority_is_away(cluster: Cluster) -> None:
    cluster.settle()
    left, *others = cluster
    left.put(b"known", b"1")
    left.get(b"known")
    for each in others:
        each.kill()
    alone = [left.address]
    quickly = "--command-timeout=1s"
    for words in (("get", "known"), ("put", "known", "2"), ("member", "list"), ("alarm", "list")):
        compare(alone, *words, quickly)
    for options in ((), ("--stream",)):
        shown = compare(alone, "get", "known", "--consistency=s", *options)
        assert shown.out == b"known\n1\n"
    assert compare(alone, "member", "list", "--consistency=s").code == 0
    assert compare(alone, "endpoint", "health", quickly).code == 1
    assert compare(alone, "endpoint", "health", "--cluster", quickly).code == 1
    until("it knows that nobody leads", lambda: not left.state().leader)
    for words in (("put", "known", "2"), ("get", "known")):
        told = run_here([f"--endpoints={left.address}", *words, quickly]).err
        assert b"see whether a majority of the members runs" in told
