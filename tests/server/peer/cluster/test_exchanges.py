"""Short requests over a dialer that a test answers for."""

from collections.abc import Sequence
from typing import cast

from kvorum.api.limits import PRODUCTION
from kvorum.network.dialer.interface import Dialer, DialEvent, DialEventKind
from kvorum.server.peer.cluster.exchanges import (
    ANSWER_BYTES_MAX,
    WAITING_MAX,
    Answer,
    Exchanges,
)

RUNNING_MAX = PRODUCTION.peer_requests_running_max
GET = ("GET", "/version", (), b"")


class Wires:
    """Takes requests; what becomes of them is up to the test."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.cancelled: list[int] = []

    def request(self, url: str, *_rest: object) -> int:
        self.urls.append(url)
        return len(self.urls)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


class Asker:
    def __init__(self) -> None:
        self.wires = Wires()
        self.exchanges = Exchanges(cast(Dialer, self.wires), RUNNING_MAX)
        self.answers: list[Answer | None] = []

    def ask(self, urls: Sequence[str] = ("http://a:1",), deadline: float = 5.0) -> int:
        self.exchanges.send_request(7, urls, GET, deadline, self.answers.append)
        return len(self.wires.urls)

    def handle(self, kind: DialEventKind, number: int, detail: object = None) -> bool:
        return self.exchanges.handle_answer(DialEvent(kind, number, detail))

    def answer(self, number: int, *pieces: bytes) -> None:
        self.handle(DialEventKind.RESPONDED, number, (200, [("x", "y")]))
        for piece in pieces:
            self.handle(DialEventKind.PIECE, number, piece)
        self.handle(DialEventKind.COMPLETED, number)


def test_an_answer_is_gathered() -> None:
    asker = Asker()
    asker.answer(asker.ask(), b"one", b"two")
    assert asker.answers == [Answer(200, {"x": "y"}, b"onetwo")]
    assert not asker.handle(DialEventKind.COMPLETED, 1), "it is over"


def test_the_next_address_is_tried_if_one_fails_and_none_after_the_head() -> None:
    asker = Asker()
    first = asker.ask(("http://a:1", "http://b:1"))
    asker.handle(DialEventKind.FAILED, first, "refused")
    assert asker.wires.urls == ["http://a:1", "http://b:1"]
    asker.handle(DialEventKind.RESPONDED, 2, (200, []))
    asker.handle(DialEventKind.FAILED, 2, "broke off")
    assert asker.answers == [None]
    assert len(asker.wires.urls) == 2


def test_the_last_address_fails() -> None:
    asker = Asker()
    asker.handle(DialEventKind.FAILED, asker.ask(), "refused")
    assert asker.answers == [None]


def test_an_answer_without_end_is_cut_off() -> None:
    asker = Asker()
    number = asker.ask()
    asker.handle(DialEventKind.RESPONDED, number, (200, []))
    asker.handle(DialEventKind.PIECE, number, bytes(ANSWER_BYTES_MAX))
    assert not asker.answers
    asker.handle(DialEventKind.PIECE, number, b"x")
    assert asker.answers == [None]
    assert asker.wires.cancelled == [number]


def test_what_takes_too_long_is_given_up() -> None:
    asker = Asker()
    late, later = asker.ask(deadline=5.0), asker.ask(deadline=6.0)
    assert asker.exchanges.pass_time(4.9) == 5.0
    assert not asker.answers
    assert asker.exchanges.pass_time(5.0) == 6.0
    assert asker.answers == [None]
    assert asker.wires.cancelled == [late]
    asker.answer(later, b"in time")
    assert asker.answers[1] == Answer(200, {"x": "y"}, b"in time")


def test_requests_wait_for_their_turn_and_not_without_limit() -> None:
    asker = Asker()
    for _ in range(RUNNING_MAX + WAITING_MAX):
        asker.ask()
    assert len(asker.wires.urls) == RUNNING_MAX
    assert not asker.answers
    asker.ask()
    assert asker.answers == [None], "one too many"
    asker.answer(3)
    assert len(asker.wires.urls) == RUNNING_MAX + 1
    asker.exchanges.pass_time(5.0)
    assert len(asker.answers) == RUNNING_MAX + WAITING_MAX + 1
    asker.answer(asker.ask(deadline=9.0))
    assert asker.answers[-1] is not None
