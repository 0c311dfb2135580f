"""An unforeseen error of an endpoint ends one request; an error over data is passed on."""

from typing import Any, cast

import pytest

from kvorum.member.waits import Steps
from kvorum.network.edge import EdgeEventKind
from kvorum.server.http.http import HttpEndpoint, HttpRequest
from kvorum.state.apply.callers import MEMBER
from tests.server.rpc.harness import Harness


class Place:
    """A server with endpoints that fail."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.member = self.harness.member
        self.cancelled: list[int] = []
        self.front = self.harness.server.front
        for name in ("slips", "slips_after_a_while", "slips_when_kept", "damaged", "well"):
            self.front.add(f"/{name}", HttpEndpoint(getattr(self, f"_{name}")))

    def _well(self, request: HttpRequest) -> None:
        self.front.respond(request.call, 200, (), b"")

    def _slips(self, _request: HttpRequest) -> None:
        raise KeyError("unforeseen")

    def _slips_when_kept(self, request: HttpRequest) -> None:
        self.front.keep_open(request.call, lambda: self.cancelled.append(request.call))
        raise KeyError("unforeseen")

    def _slips_after_a_while(self, request: HttpRequest) -> None:
        def steps() -> Steps:
            yield None
            raise KeyError("unforeseen")

        self.front.keep_open(request.call, lambda: self.member.cancel(request.call))
        self.member.start(request.call, MEMBER, self.front.bounded(request.call, steps()))

    def _damaged(self, _request: HttpRequest) -> None:
        self.member.state.store.readable(cast(Any, "no revision"))

    def ask(self, call: int, target: str) -> int:
        self.harness.happen((EdgeEventKind.HTTP_OPENED, call, (0, "GET", target, [("host", "a")])))
        status, _ = self.harness.edge.responses[call]
        return status


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.parametrize("target", ["/slips", "/slips_after_a_while", "/slips_when_kept"])
def test_a_slip_ends_its_request_alone(place: Place, target: str) -> None:
    assert place.ask(1, target) == 500
    assert place.member.boundary.counts == {"http": 1}
    assert place.cancelled == ([1] if target.endswith("kept") else [])
    assert not place.front.open
    assert place.ask(2, "/well") == 200


def test_damage_goes_on(place: Place) -> None:
    with pytest.raises(TypeError):
        place.ask(1, "/damaged")
    assert not place.member.boundary.counts


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/well", 200),
        ("/%77ell", 200),
        ("/well?a=%zz", 200),
        ("/well#?", 200),
        ("http://[/well", 200),
        ("//[", 404),
        ("//well", 404),
        ("http://a", 404),
        ("", 404),
        ("?", 404),
        ("/well%zz", 400),
        ("/well?" + "a&" * 200, 400),
    ],
)
def test_targets(place: Place, target: str, status: int) -> None:
    assert place.ask(1, target) == status
    assert not place.member.boundary.counts
