"""The line about a slow request: when there is one, and which step it blames."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.api.durations import duration
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.api.requests import decode_delete_range, decode_put, decode_range, decode_txn
from kvorum.member.jobs import ExecutorKind
from kvorum.server.rpc.interface import Clients
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.telemetry.logs import Line, Logger
from kvorum.server.telemetry.request_stats import RequestStats
from kvorum.server.telemetry.slow import LINES_MAX, content
from tests.member.harness import Machine
from tests.server.fronts import Fronts

LINE = "request stats"
PUT = pb.PutRequest(key=b"k", value=b"secret")


def lines(machine: Machine) -> list[dict[str, Any]]:
    return [fields for line, fields in machine.logger.lines if line == LINE]


def blamed(fields: dict[str, Any]) -> str:
    """Return the step that took longest."""
    steps: dict[str, str] = fields["steps"]
    return max(steps, key=lambda name: duration(steps[name]))


def held_disk(cluster: Fronts, machine: Machine) -> Callable[[], None]:
    def release() -> None:
        machine.held.clear()
        machine.run_jobs()

    del cluster
    machine.held.add(ExecutorKind.LOG)
    return release


def cut_off(cluster: Fronts, machine: Machine) -> Callable[[], None]:
    cluster.isolate(machine)
    return cluster.heal


CASES: dict[str, tuple[int, str, pb.PutRequest | pb.RangeRequest, Any, str]] = {
    "the disk": (1, "KV/Put", PUT, held_disk, "durable"),
    "the other members": (3, "KV/Put", PUT, cut_off, "commit"),
    "the confirmation of a read": (3, "KV/Range", pb.RangeRequest(key=b"k"), cut_off, "confirm"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_waited_for_is_blamed(case: str) -> None:
    size, name, request, hold, step = CASES[case]
    cluster = Fronts(size)
    machine = cluster.leader()
    revision = cluster.call(machine, "KV/Put", PUT).header.revision
    release = hold(cluster, machine)
    call = cluster.begin(machine, name, request)
    began = cluster.now
    cluster.pass_time(0.7)
    assert not lines(machine)
    release()
    cluster.wait(lambda: call in machine.replies)
    (fields,) = lines(machine)
    assert blamed(fields) == step
    assert fields["response type"] == f"/etcdserverpb.{name}"
    assert fields["remote"] == f"127.0.0.1:{call}"
    assert 'key:"k"' in fields["request content"] and "secret" not in str(fields)
    assert fields["revision"] == revision + (name == "KV/Put")
    assert fields["response size"] == len(machine.replies[call])
    start = datetime.fromisoformat(fields["start time"]).timestamp()
    assert abs(start - (1_700_000_000.0 + began)) < 1e-3
    spent = duration(fields["time spent"]) / 1e9
    assert abs(spent - (cluster.now - began)) < 1e-3
    assert abs(sum(map(duration, fields["steps"].values())) / 1e9 - spent) < 1e-4


def test_a_follower_waits_for_the_leader() -> None:
    cluster = Fronts(3)
    machine = cluster.follower()
    cluster.isolate(machine)
    # Turns are told apart by their times.
    cluster.pass_time(0.01)
    call = cluster.begin(machine, "KV/Put", PUT)
    cluster.wait(lambda: call in machine.replies)
    (fields,) = lines(machine)
    assert blamed(fields) == "propose" and "timed out" in fields["error"]


def test_a_request_that_fails_says_where() -> None:
    cluster = Fronts(3)
    machine = cluster.leader()
    cluster.isolate(machine)
    # Turns are told apart by their times.
    cluster.pass_time(0.01)
    call = cluster.begin(machine, "KV/Put", PUT)
    cluster.wait(lambda: call in machine.replies)
    (fields,) = lines(machine)
    assert list(fields["steps"])[-1] == blamed(fields) == "commit"
    assert fields["error"].startswith("etcdserver: request timed out")
    assert "revision" not in fields


def test_an_entry_that_is_applied_for_long() -> None:
    cluster = Fronts(1)
    machine = cluster.leader()
    for number in range(2000):
        machine.put(b"%05d" % number)
    cluster.settle()
    cluster.slices = 1
    request = pb.DeleteRangeRequest(key=b"\0", range_end=b"\0")
    number = NUMBERS["/etcdserverpb.KV/DeleteRange"]
    machine.requests.append((cluster.next_call(), number, request.SerializeToString(), None))
    while machine.running.replica.apply_queue.entry is None:
        machine.turn()
    cluster.now += 1000.0
    cluster.slices = 0
    cluster.settle()
    (fields,) = lines(machine)
    assert blamed(fields) == "apply"
    assert fields["request content"] == 'key:"\0" range_end:"\0"'


class Told:
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def write(self, line: Line) -> None:
        self.lines.append(line)


def test_a_slow_request_is_told_of_once() -> None:
    """Though at the level of debugging there is a line for each request."""
    cluster = Fronts(1)
    machine = cluster.leader()
    told = Told()
    logger = Logger([told], "debug")
    stats = RequestStats(Clients(machine.edge), logger, lambda: cluster.now)
    machine.server.calls.stats = stats
    cluster.call(machine, "KV/Put", PUT)
    assert [line.message for line in told.lines] == [LINE] and not lines(machine)
    release = held_disk(cluster, machine)
    call = cluster.begin(machine, "KV/Put", PUT)
    cluster.pass_time(0.7)
    release()
    cluster.wait(lambda: call in machine.replies)
    assert len(told.lines) == len(lines(machine)) == 1 and not stats._calls


def test_calls_that_wait_for_others_are_not_slow() -> None:
    cluster = Fronts(1)
    machine = cluster.leader()
    for lease in (7, 8):
        cluster.call(machine, "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    held = cluster.call(machine, "Lock/Lock", LockRequest(name=b"l", lease=7))
    call = cluster.begin(machine, "Lock/Lock", LockRequest(name=b"l", lease=8))
    cluster.pass_time(2.0)
    cluster.call(machine, "Lock/Unlock", UnlockRequest(key=held.key))
    assert call in machine.replies and not lines(machine)


@settings(max_examples=40, deadline=None)
@given(
    slow_seconds=st.sampled_from([0.000_5, 0.05, 0.1, 0.25, 0.3, 1.0]),
    waits=st.lists(st.floats(0.001, 1.5), min_size=1, max_size=4),
    pause=st.floats(0.0, 0.2),
)
@example(slow_seconds=0.3, waits=[0.301, 0.299], pause=0.0)
def test_there_is_a_line_for_each_that_took_longer(
    slow_seconds: float, waits: list[float], pause: float
) -> None:
    """Whatever the ticks: requests are told apart to the moment."""
    cluster = Fronts(1)
    machine = cluster[0]
    machine.settings = replace(machine.settings, slow_request_seconds=slow_seconds)
    machine.kill()
    machine.start()
    cluster.leader()
    machine.logger.lines.clear()
    for wait in waits:
        cluster.pass_time(pause)
        before = len(lines(machine))
        release = held_disk(cluster, machine)
        call = cluster.begin(machine, "KV/Put", PUT)
        began = cluster.now
        cluster.pass_time(wait)
        release()
        cluster.settle()
        assert call in machine.replies
        # A turn takes some microseconds here.
        if abs(cluster.now - began - slow_seconds) > 1e-3:
            assert len(lines(machine)) - before == (cluster.now - began > slow_seconds)


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 3 * LINES_MAX), min_size=1, max_size=3))
@example(counts=[LINES_MAX, LINES_MAX + 1])
def test_of_many_that_are_slow_at_once_some_are_told_of_and_all_are_counted(
    counts: list[int],
) -> None:
    cluster = Fronts(1)
    machine = cluster.leader()
    for count in counts:
        machine.logger.lines.clear()
        put_slowly(cluster, machine, count)
        cluster.pass_time(2.0)
        messages = [line for line, _ in machine.logger.lines]
        told = min(count, LINES_MAX)
        assert messages.count(LINE) == messages.count("slow request is still in flight") == told
        left_out = [
            fields["count"]
            for line, fields in machine.logger.lines
            if line == "slow requests were not logged"
        ]
        assert left_out == [count - told] * (count > told)


def put_slowly(cluster: Fronts, machine: Machine, count: int) -> None:
    release = held_disk(cluster, machine)
    calls = {cluster.begin(machine, "KV/Put", PUT) for _ in range(count)}
    cluster.pass_time(3.0)
    release()
    cluster.wait(lambda: calls <= machine.replies.keys())


KEYS = st.binary(max_size=200)
VALUE = b"\xf0\x9f\x92\xa3 a value that nobody else has"


@given(st.data())
def test_content_is_bounded_and_has_no_values(data: st.DataObject) -> None:
    key, range_end = data.draw(KEYS), data.draw(KEYS)
    put = pb.PutRequest(key=key, value=VALUE, lease=data.draw(st.integers(0, 2**62)))
    ranged = pb.RangeRequest(key=key, range_end=range_end, limit=3)
    compare = pb.Compare(key=key, target=pb.Compare.VALUE, value=VALUE)
    operation = pb.RequestOp(request_put=put)
    count = data.draw(st.integers(0, 20))
    txn = pb.TxnRequest(
        compare=[compare] * count, success=[operation] * count, failure=[operation] * count
    )
    requests = (
        decode_put(put.SerializeToString()),
        decode_range(ranged.SerializeToString()),
        decode_delete_range(pb.DeleteRangeRequest(key=key).SerializeToString()),
        decode_txn(txn.SerializeToString()),
    )
    for request in requests:
        text = content(request)
        assert "nobody else" not in text
        assert len(text) < 12_000
