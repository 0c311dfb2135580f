"""Both tools at one cluster of three members: whole, without one of them, without a majority."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.members import Cluster, running_cluster
from tests.cluster.starvation import Machine, again_if_starved
from tests.etcd import binary, is_target
from tests.tools.ctl.duel import PATIENCE, Outcome, run_here
from tests.waiting import WAIT_SECONDS_MAX, until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not is_target():
        pytest.skip("etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def settle(cluster: Cluster) -> Machine:
    """Bring back the members that a test left away, and begin to watch the machine."""
    for member in cluster:
        if not member.is_running:
            member.start()
    cluster.settle()
    return Machine(cluster)


def compare(machine: Machine, endpoints: list[str], *words: str) -> Outcome:
    """Run a command line in both tools, demand the same outcome, return ours.

    Lines are sorted: whoever is healthy first is shown first. Members that a busy machine starves
    elect another leader in between, or do not answer in time.
    """
    arguments = [f"--endpoints={','.join(endpoints)}", *PATIENCE, *words]
    command = [str(binary("etcdctl")), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_SECONDS_MAX)
    theirs = Outcome(done.returncode, done.stdout, done.stderr)
    ours = run_here(arguments)
    machine.expect(_plain(ours) == _plain(theirs), f"the same of {words}: {ours}, {theirs}")
    return ours


def _plain(outcome: Outcome) -> tuple[int, list[bytes], list[bytes]]:
    def lines(data: bytes) -> list[bytes]:
        data = re.sub(rb"\b[0-9.]+(?:\xc2\xb5s|[mn]?s)\b", b"<took>", data)
        # Indexes and sizes move on by themselves, and columns with them.
        data = re.sub(rb"\b\d+ [kM]?B\b|\d+%|\b\d{1,4}\b(?=[, ])", b"<number>", data)
        data = re.sub(rb" +|(?:\xe2\x94\x80)+", b" ", data)
        return sorted(each for each in data.splitlines() if not each.startswith((b"{", b"Hint")))

    return outcome.code, lines(outcome.out), lines(outcome.err)


@again_if_starved
def test_all_members_are_asked(cluster: Cluster) -> None:
    machine = settle(cluster)
    every = [each.address for each in cluster]
    for form in ("simple", "table"):
        for endpoints, options in ((every, ()), (every[:1], ("--cluster",))):
            for words in (("health",), ("status",), ("hashkv", "--rev=1")):
                outcome = compare(machine, endpoints, "endpoint", *words, *options, "-w", form)
                machine.expect(outcome.code == 0, f"{outcome}")
                assert all(each.encode() in outcome.out for each in every)
    compare(machine, every, "member", "list", "-w=table")
    compare(machine, every, "defrag")
    compare(machine, every[1:2], "defrag", "--cluster")
    compare(machine, every, "snapshot", "save", "/nonexistent/file")


@again_if_starved
def test_the_leader_moves(cluster: Cluster) -> None:
    machine = settle(cluster)
    leader = cluster.leader()
    first, second = (each for each in cluster if each is not leader)
    followers = [first.address, second.address]
    target = f"{first.state().header.member_id:x}"
    outcome = compare(machine, followers, "move-leader", target)
    machine.expect(outcome.code == 128, f"{outcome}")
    assert compare(machine, [leader.address], "move-leader", "123").code == 1
    every = [each.address for each in cluster]
    outcome = run_here([f"--endpoints={','.join(every)}", "move-leader", target])
    before = f"{leader.state().header.member_id:x}"
    expected = f"Leadership transferred from {before} to {target}\n".encode()
    machine.expect((outcome.code, outcome.out) == (0, expected), f"{outcome}")
    machine.expect(cluster.leader() is first, f"{first} leads")


@pytest.mark.long
@again_if_starved
def test_a_member_is_away(cluster: Cluster) -> None:
    machine = settle(cluster)
    leader = cluster.leader()
    away = next(each for each in cluster if each is not leader)
    away.kill()
    every = [each.address for each in cluster]
    for words in (("health",), ("health", "--cluster"), ("status", "--cluster"), ("hashkv",)):
        outcome = compare(machine, every, "endpoint", *words, "--command-timeout=1s")
        assert outcome.code == 1
        assert away.address.encode() in outcome.err
    compare(machine, every, "defrag", "--command-timeout=1s")
    for command in (("put", "away", "1"), ("get", "away")):
        outcome = compare(machine, every, *command)
        machine.expect(outcome.code == 0, f"{outcome}")
    away.start()


@pytest.mark.long
@again_if_starved
def test_a_majority_is_away(cluster: Cluster) -> None:
    machine = settle(cluster)
    left, *others = cluster
    left.put(b"known", b"1")
    left.get(b"known")
    for each in others:
        each.kill()
    alone = [left.address]
    quickly = "--command-timeout=1s"
    for words in (("get", "known"), ("put", "known", "2"), ("member", "list"), ("alarm", "list")):
        compare(machine, alone, *words, quickly)
    for options in ((), ("--stream",)):
        shown = compare(machine, alone, "get", "known", "--consistency=s", *options)
        assert shown.out == b"known\n1\n"
    assert compare(machine, alone, "member", "list", "--consistency=s").code == 0
    assert compare(machine, alone, "endpoint", "health", quickly).code == 1
    assert compare(machine, alone, "endpoint", "health", "--cluster", quickly).code == 1
    until("it knows that nobody leads", lambda: not left.state().leader)
    for words in (("put", "known", "2"), ("get", "known")):
        told = run_here([f"--endpoints={left.address}", *words, quickly]).err
        machine.expect(b"see whether a majority of the members runs" in told, f"{told!r}")
