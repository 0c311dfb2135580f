"""The edge without a socket keeps the contract of the other edges."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.errors import Code, Status
from kvorum.client.grpc.wire import End
from kvorum.embed.edge import LOCAL_FIRST, EdgeWithLocalClients, LocalConnection
from kvorum.network.edge import EdgeEventKind, Limits, open_edge
from kvorum.server.rpc.table import METHODS

WATCH = "/etcdserverpb.Watch/Watch"
PUT = "/etcdserverpb.KV/Put"
LIMITS = Limits(request_bytes_max=1000, stream_writable_bytes=64)
OK = Status(Code.OK, "")


class Pair:
    """An edge, one client's door, and how often each side was woken."""

    def __init__(self) -> None:
        self.woken = self.rung = self.asked = 0
        self.lends = False
        self.edge = EdgeWithLocalClients(
            open_edge(METHODS, (), LIMITS), LIMITS, self._wake, self._lend
        )
        self.door = LocalConnection(self.edge, self._ring)

    def _wake(self) -> None:
        self.woken += 1

    def _lend(self, may_wait: bool) -> bool:  # noqa: ARG002
        self.asked += 1
        return self.lends

    def _ring(self) -> None:
        self.rung += 1

    def taken(self) -> list[tuple[int, bytes | End]]:
        found: list[tuple[int, bytes | End]] = []
        while (delivery := self.door.take()) is not None:
            call = delivery.call.client_number
            found.append((call, delivery.content))
            if delivery.is_last and isinstance(delivery.content, bytes):
                found.append((call, End(Code.OK, "")))
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.edge.stop()


def open_stream(pair: Pair, call: int = 1) -> int:
    pair.door.start(call, WATCH, (("token", "secret"), ("other", "x")), b"first", False)
    _, events = pair.edge.poll(10, 1000)
    (opened, number, detail), first = events
    assert opened == EdgeEventKind.OPENED and METHODS[detail[0]][0] == WATCH
    assert detail[1] == {"token": b"secret"}
    assert first == (EdgeEventKind.MESSAGE, number, b"first")
    assert number >= LOCAL_FIRST
    return int(number)


def test_a_unary_call_is_handed_out_and_answered(pair: Pair) -> None:
    pair.door.start(7, PUT, (), b"request", True)
    ((number, method, payload, metadata),), events = pair.edge.poll(10, 1000)
    assert (METHODS[method][0], payload, metadata, events) == (PUT, b"request", None, [])
    pair.edge.reply([(number, b"answer")])
    assert pair.taken() == [(7, b"answer"), (7, End(Code.OK, ""))]
    # It has ended, so that nothing more can come of it.
    pair.edge.reply([(number, b"again")])
    pair.door.cancel(7)
    assert pair.taken() == [] and pair.edge.poll(10, 1000) == ([], [])


@pytest.mark.parametrize("lends", [False, True])
def test_a_sleeping_server_is_woken_once_or_lends_its_turn(pair: Pair, lends: bool) -> None:
    pair.lends = lends
    pair.door.push(may_wait=True)
    assert pair.edge.announce_sleep()
    pair.door.push(may_wait=True)
    assert pair.asked == 0
    pair.door.start(1, PUT, (), b"", True)
    pair.door.start(2, PUT, (), b"", True)
    assert (pair.asked, pair.woken) == (0, 0)
    pair.door.push(may_wait=True)
    assert (pair.asked, pair.woken) == (1, not lends)
    pair.door.cancel(2)
    pair.door.cancel(1)
    # Who does not push wakes it.
    assert (pair.asked, pair.woken) == (1, 1)
    pair.edge.awake()
    assert not pair.edge.announce_sleep()
    assert pair.edge.poll(10, 1000) == ([], [])
    assert pair.edge.announce_sleep()


@pytest.mark.parametrize("is_marked", [False, True])
def test_the_end_of_a_unary_call_is_reported_if_requested(pair: Pair, is_marked: bool) -> None:
    pair.door.start(1, PUT, (), b"", True)
    ((number, *_),), _ = pair.edge.poll(10, 1000)
    if is_marked:
        pair.edge.mark_waiting(number)
    pair.door.cancel(1)
    _, events = pair.edge.poll(10, 1000)
    assert events == ([(EdgeEventKind.ENDED, number, None)] if is_marked else [])


def test_a_call_that_was_cancelled_at_once_is_never_seen(pair: Pair) -> None:
    pair.door.start(1, PUT, (), b"", True)
    pair.door.start(2, WATCH, (), b"", False)
    pair.door.cancel(1)
    pair.door.cancel(2)
    assert pair.edge.poll(10, 1000) == ([], [])


def test_the_end_of_a_stream_is_reported(pair: Pair) -> None:
    number = open_stream(pair)
    pair.door.cancel(1)
    pair.edge.send([(number, b"late")])
    assert pair.edge.poll(10, 1000) == ([], [(EdgeEventKind.ENDED, number, None)])
    assert pair.taken() == []


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["send", "take", "hold", "release"]), max_size=30))
def test_messages_come_in_order_whoever_holds_them_back(steps: list[str]) -> None:
    pair = Pair()
    try:
        number = open_stream(pair)
        sent: list[bytes] = []
        taken: list[tuple[int, bytes | End]] = []
        is_held = False
        for step in steps:
            if step == "send":
                sent.append(b"message %d" % len(sent))
                pair.edge.send([(number, sent[-1])])
            elif step == "take":
                before = len(taken)
                taken += pair.taken()
                assert not is_held or len(taken) == before
            else:
                is_held = step == "hold"
                pair.door.hold(1, is_held=is_held)
            kept = sum(map(len, sent[len(taken) :]))
            assert pair.edge.pending_bytes(number) == kept
        pair.edge.finish(number, OK)
        pair.door.hold(1, is_held=False)
        taken += pair.taken()
        assert taken == [*((1, each) for each in sent), (1, End(Code.OK, ""))]
    finally:
        pair.edge.stop()


def test_a_stream_is_writable_again_when_little_of_it_is_left(pair: Pair) -> None:
    number = open_stream(pair)
    pair.edge.send([(number, b"x" * 40), (number, b"x" * 40)])
    assert pair.edge.pending_bytes(number) == 80
    assert pair.edge.poll(10, 1000) == ([], [])
    pair.taken()
    assert pair.edge.poll(10, 1000) == ([], [(EdgeEventKind.WRITABLE, number, None)])


def test_what_is_too_large_or_unknown_is_refused(pair: Pair) -> None:
    pair.door.start(1, PUT, (), b"x" * 1001, True)
    pair.door.start(2, "/nobody/Knows", (), b"", True)
    (_, large), (_, unknown) = pair.taken()
    assert isinstance(large, End) and isinstance(unknown, End)
    assert large == End(
        Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (1001 vs. 1000)"
    )
    assert unknown.code == Code.UNIMPLEMENTED
    number = open_stream(pair, 3)
    pair.door.send(3, b"x" * 1001)
    assert pair.taken() == [(3, large)]
    assert pair.edge.poll(10, 1000) == ([], [(EdgeEventKind.ENDED, number, None)])


def test_calls_of_a_draining_edge_are_refused_as_unprocessed(pair: Pair) -> None:
    number = open_stream(pair)
    pair.edge.drain()
    pair.door.start(2, PUT, (), b"", True)
    ((call, end),) = pair.taken()
    assert call == 2 and isinstance(end, End)
    assert (end.code, end.is_unprocessed) == (Code.UNAVAILABLE, True)
    assert not pair.edge.is_drained()
    pair.edge.finish(number, OK)
    assert pair.taken() == [(1, End(Code.OK, ""))]


def test_open_calls_are_ended_at_the_stop() -> None:
    pair = Pair()
    open_stream(pair)
    pair.door.start(2, PUT, (), b"", True)
    pair.edge.stop()
    found = dict(pair.taken())
    assert {call: end.code for call, end in found.items() if isinstance(end, End)} == {
        1: Code.UNAVAILABLE,
        2: Code.UNAVAILABLE,
    }
