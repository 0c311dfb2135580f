"""Calls of several steps: what they wait for, and what is left when they end."""

import gc

import pytest

from kvorum.api import errors
from kvorum.api.pb.etcdserverpb import PutRequest, PutResponse, RequestOp, TxnRequest
from kvorum.member.errors import MemberStopped
from kvorum.member.jobs import ExecutorKind
from kvorum.member.outbox import Question
from kvorum.member.waits import (
    AppliedTo,
    AskLeader,
    KeyDeleted,
    KeysChanged,
    LeaderKnown,
    Propose,
    ReadIndex,
    RunJob,
    Send,
    Steps,
    Until,
)
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.storage.files import Files
from tests.member.harness import Cluster, Machine


class Answer:
    """A job that returns a value or raises it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def run(self, _files: Files) -> object:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def test_every_wait_is_answered() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    member = machine.running
    seen: list[object] = []

    def steps() -> Steps:
        body = PutRequest(key=b"key").SerializeToString()
        answer = yield Propose(requests.PUT, body)
        seen.append(PutResponse.FromString(answer).header.revision)
        seen.append((yield ReadIndex()))
        seen.append((yield AppliedTo(member.state.applied)))
        seen.append((yield LeaderKnown(member.now)) == member.id)
        seen.append((yield RunJob(ExecutorKind.POOL, Answer(7))))
        try:
            yield RunJob(ExecutorKind.POOL, Answer(OSError("broken")))
        except OSError as error:
            seen.append(str(error))
        seen.append((yield None))
        began = member.now
        yield Until(began + 2.0)
        seen.append(member.now >= began + 2.0)
        return b"end"

    assert cluster.answer(machine, machine.start_steps(steps())) == b"end"
    assert seen == [2, None, None, True, 7, "broken", None, True]


def test_keys_are_waited_for() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    store = machine.running.state.store
    cluster.success(machine, machine.put(b"key"))

    def deleted(revision: int) -> Steps:
        yield KeyDeleted(b"key", revision)
        return b"deleted at %d" % store.revision

    def changed() -> Steps:
        yield KeysChanged(b"k", b"l", store.revision)
        return b"changed at %d" % store.revision

    waiting = machine.start_steps(deleted(store.revision))
    watching = machine.start_steps(changed())
    cluster.success(machine, machine.put(b"other"))
    cluster.settle()
    assert waiting not in machine.replies and watching not in machine.replies
    cluster.success(machine, machine.put(b"key"))
    assert cluster.success(machine, watching) == b"changed at 4"
    assert waiting not in machine.replies
    cluster.success(machine, machine.delete(b"key"))
    assert cluster.success(machine, waiting) == b"deleted at 5"
    # An earlier deletion is found in the history.
    assert cluster.success(machine, machine.start_steps(deleted(4))) == b"deleted at 5"
    assert machine.running.hub.streams_open == 0


def test_a_stream_sends_and_is_held_back() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def steps() -> Steps:
        for number in range(5):
            yield Send(b"%d" % number)
        return errors.STOPPED

    call = machine.start_steps(steps())
    machine.running.hold(call)
    cluster.settle()
    assert [data for _, data in machine.sends] == [b"0"]
    machine.running.release(call)
    assert cluster.answer(machine, call) == errors.STOPPED
    assert machine.sends == [(call, b"%d" % number) for number in range(5)]


def test_cancelling_closes_a_procedure_wherever_it_waits() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    closed: list[str] = []

    def steps(name: str) -> Steps:
        try:
            if name == "key":
                yield KeyDeleted(b"key", 0)
            elif name == "time":
                yield Until(1e9)
            elif name == "index":
                yield AppliedTo(1 << 60)
            else:
                while True:
                    yield None
        finally:
            closed.append(name)
        return None

    names = ["key", "time", "index", "slices"]
    calls = [machine.start_steps(steps(name)) for name in names]
    machine.turn()
    for call in calls:
        machine.running.cancel(call)
    assert closed == names
    assert machine.running.hub.streams_open == 0
    cluster.pass_time(1.0)
    assert not set(calls) & set(machine.replies)


def test_a_mistake_in_a_procedure_ends_its_call_and_stops_the_member_without_one() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()

    def refused() -> Steps:
        yield None
        raise errors.StatusError(errors.NOT_LEADER)

    def mistaken() -> Steps:
        yield None
        raise KeyError("mistake")

    assert cluster.answer(machine, machine.start_steps(refused())) == errors.NOT_LEADER
    assert cluster.answer(machine, machine.start_steps(mistaken())) == errors.INTERNAL
    machine.running.start(None, MEMBER, mistaken())
    with pytest.raises(MemberStopped, match="mistake"):
        cluster.settle()


def test_the_leader_is_asked_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3)
    follower = cluster.follower()
    member = follower.running
    answers: list[object] = []

    def steps() -> Steps:
        answers.append((yield AskLeader("/path", b"body")))
        answers.append((yield LeaderKnown(member.now)))
        return b"end"

    asked: list[Question] = []
    with monkeypatch.context() as planted:
        planted.setattr(cluster, "ask", lambda _asking, question: asked.append(question))
        call = follower.start_steps(steps())
        follower.turn()
    (question,) = asked
    assert (question.peer, question.path, question.body) == (member.leader, "/path", b"body")
    member.take_answer(question.number, b"answer")
    cluster.success(follower, call)
    assert answers == [b"answer", member.leader]
    cluster.isolate(follower)
    cluster.wait(lambda: member.leader == 0)

    def alone() -> Steps:
        answers.append((yield AskLeader("/path", b"")))
        answers.append((yield LeaderKnown(member.now + 1.0)))
        return b"end"

    cluster.success(follower, follower.start_steps(alone()))
    assert answers[2:] == [errors.NO_LEADER, None]


def everything(cluster: Cluster, machine: Machine) -> None:
    """Make every kind of request a few times."""

    def steps() -> Steps:
        yield Propose(requests.PUT, PutRequest(key=b"key").SerializeToString())
        yield ReadIndex()
        yield Until(machine.running.now + 0.2)
        yield KeysChanged(b"key", b"", 1)
        yield RunJob(ExecutorKind.POOL, Answer(1))
        return b"end"

    calls = [machine.start_steps(steps())]
    for number in range(300):
        calls.append(machine.put(b"%d" % number, b"value", prev_kv=True))
        calls.append(machine.range(b"%d" % number))
    calls.append(machine.range(b"\0", b"\0"))
    calls.append(machine.put(b"refused", lease=5))
    operations = [RequestOp(request_put=PutRequest(key=b"%d" % each)) for each in range(3)]
    calls.append(machine.txn(TxnRequest(success=operations)))
    calls.append(machine.delete(b"\0", b"\0", prev_kv=True))
    cancelled = machine.start_steps(steps())
    machine.turn()
    machine.running.cancel(cancelled)
    for call in calls:
        cluster.answer(machine, call)
    cluster.pass_time(1.0)


def test_serving_leaves_nothing_to_the_collector() -> None:
    cluster = Cluster(3, snapshot_entries=50, catch_up_entries=10)
    machine = cluster.leader()
    everything(cluster, machine)
    machine.replies.clear()
    gc.collect()
    gc.disable()
    try:
        everything(cluster, machine)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [each for each in gc.garbage if type(each).__module__.startswith("kvorum")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert ours == []
