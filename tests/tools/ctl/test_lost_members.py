"""Watches of both tools while members of a cluster go away."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.members import MAKES, Cluster, Member, running_cluster
from tests.etcd import binary, is_target
from tests.tools.ctl.duel import KEPT_VARIABLES
from tests.tools.ctl.processes import Outcome, Program


def _tools() -> tuple[list[str], list[str]]:
    return [str(binary("etcdctl"))], [sys.executable, "-m", "kvorum.tools.ctl.main"]


@pytest.fixture(scope="module", params=MAKES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if not is_target():
        pytest.skip("etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3")
    with running_cluster(tmp_path_factory.mktemp("cluster"), request.param) as made:
        made.settle()
        yield made


def _start(stack: ExitStack, tool: list[str], member: Member, *words: str) -> Program:
    env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    program = Program([*tool, f"--endpoints={member.address}", *words], env)
    stack.callback(program.close)
    return program


@pytest.mark.long
def test_a_watch_goes_on_when_its_member_comes_back(cluster: Cluster) -> None:
    member, other, _ = cluster
    with ExitStack() as stack:
        since = str(other.revision() + 1)
        programs = [_start(stack, tool, member, "watch", "k", "--rev", since) for tool in _tools()]
        other.put(b"k", b"before")
        for program in programs:
            program.expect(b"PUT\nk\nbefore\n")
        member.kill()
        member.start()
        cluster.settle()
        other.put(b"k", b"after")
        for program in programs:
            program.expect(b"PUT\nk\nafter\n")
            program.signal(signal.SIGINT)
        for program in programs:
            outcome = program.end()
            assert outcome.code == -signal.SIGINT
            assert outcome.out == b"PUT\nk\nbefore\nPUT\nk\nafter\n"


@pytest.mark.long
def test_a_watch_needs_a_leader(cluster: Cluster) -> None:
    member, *others = cluster
    with ExitStack() as stack:
        since = str(member.revision() + 1)
        words = ("watch", "led", "--rev", since, "-w", "json")
        programs = [_start(stack, tool, member, *words) for tool in _tools()]
        member.put(b"led", b"1")
        for program in programs:
            program.expect(rb"\}\n")
        for each in others:
            each.kill()
        theirs, ours = (program.end() for program in programs)
        assert _told(ours) == _told(theirs)
        assert theirs.code == 5
        # One that begins without a leader ends likewise.
        theirs, ours = (_start(stack, tool, member, *words[:2]).end() for tool in _tools())
        assert _told(ours) == _told(theirs)
        for each in others:
            each.start()
        cluster.settle()


def _told(outcome: Outcome) -> Outcome:
    """Leave out what etcd's client logs."""
    lines = [each for each in outcome.err.splitlines() if not each.startswith(b"{")]
    return outcome._replace(err=b"\n".join(lines))
