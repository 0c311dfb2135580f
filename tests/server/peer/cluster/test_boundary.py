"""An unforeseen error about what another member sends: one request ends, and the member goes on."""

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member import peer_requests
from kvorum.member.errors import MemberStopped
from kvorum.member.member import Member
from kvorum.member.waits import Ask, Steps
from kvorum.network.dialer.interface import DialEvent, DialEventKind
from kvorum.network.edge.interface import EdgeEventKind, Headers
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message
from kvorum.server.peer.cluster import answers, polling
from kvorum.server.peer.cluster.exchanges import Answer
from kvorum.server.peer.cluster.peering import Peering, PeeringSettings
from kvorum.server.peer.transport import probing
from kvorum.server.peer.transport.headers import PROBING
from kvorum.state.apply.callers import MEMBER
from kvorum.state.membership.documents import MemberDocument as Peer
from kvorum.state.membership.documents import decode_member
from tests.server.rpc.harness import Harness
from tests.server.seams import RecordingEdge

LISTENER = 3
OTHER = Peer(7, ("http://other:2380",))
NESTED = b"[" * 60_000


class Dialer:
    """Keeps what is asked; the test answers."""

    def __init__(self) -> None:
        self.targets: dict[int, str] = {}
        self.cancelled: list[int] = []

    def request(
        self, url: str, method: str, target: str, headers: Headers, body: bytes | None
    ) -> int:
        del url, method, headers, body
        self.targets[len(self.targets) + 1] = target
        return len(self.targets)

    def send(self, number: int, piece: bytes) -> None:
        pass

    def finish(self, number: int) -> None:
        pass

    def pending_bytes(self, number: int) -> int:
        del number
        return 0

    def probe_host(self, number: int) -> int:
        raise AssertionError(f"nobody doubts a leader: {number}")

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def poll(self) -> list[DialEvent]:
        return []


class Place:
    """A server whose member leads alone, and whose peering knows one other by its address."""

    def __init__(self) -> None:
        self.dialer = Dialer()
        self.harness = Harness(make_peers=self._make_peers)
        self.harness.server.peer_listeners.add(LISTENER)
        self.member = self.harness.member

    def _make_peers(self, member: Member, edge: RecordingEdge) -> Peering:
        settings = PeeringSettings(peer_urls=("http://own:2380",), known=[OTHER])
        self.peering = Peering(member, edge, self.dialer, settings, member.logger)
        return self.peering

    def ask(
        self, call: int, method: str, target: str, body: bytes = b"", headers: Headers = ()
    ) -> tuple[int, bytes]:
        """Make a request of another member; return its answer."""
        opened = (EdgeEventKind.HTTP_OPENED, call, (LISTENER, method, target, headers))
        self.harness.happen(opened)
        for event in ((EdgeEventKind.MESSAGE, call, body), (EdgeEventKind.HALF_CLOSED, call, None)):
            self.harness.happen(event)
        self.harness.until(lambda: call in self.harness.edge.responses)
        status, said = self.harness.edge.responses[call]
        return status, said or b""

    def answer(self, target: str, body: bytes) -> int:
        """Answer what was last asked at a target; return the number of the request."""
        number = max(each for each, asked in self.dialer.targets.items() if asked == target)
        events = [
            DialEvent(DialEventKind.RESPONDED, number, (200, [])),
            DialEvent(DialEventKind.PIECE, number, body),
            DialEvent(DialEventKind.COMPLETED, number, None),
        ]
        self.harness.turn(dialed=events)
        return number

    def pass_time(self, seconds: float) -> None:
        self.harness.pass_time(seconds)

    @property
    def caught(self) -> dict[str, int]:
        return dict(self.member.boundary.counts)

    def check_alive(self) -> None:
        put = self.harness.ask("KV/Put", pb.PutRequest(key=b"alive"))
        assert not isinstance(put, Status)
        assert self.ask(99, "GET", "/version")[0] == 200


@pytest.fixture
def place() -> Place:
    return Place()


def slips(*_: object) -> None:
    raise KeyError("unforeseen")


# Other members ask.


@pytest.mark.parametrize(
    ("name", "kind"), [("_refusal", "head"), ("_answered", "body")], ids=lambda part: part
)
def test_a_request_that_slips(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    del kind
    with monkeypatch.context() as planted:
        planted.setattr(answers.PeerAnswers, name, slips)
        assert place.ask(1, "GET", peer_requests.HASH_KV_PATH, b"{}")[0] == 500
    assert place.caught == {"peer": 1}
    assert 1 not in place.peering.open
    place.check_alive()


def test_a_question_that_slips_while_it_is_answered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr("kvorum.member.peer_requests.json.loads", slips)
        assert place.ask(1, "GET", peer_requests.HASH_KV_PATH, b"{}")[0] == 500
    assert place.caught == {"peer": 1}
    place.check_alive()


def test_a_question_that_finds_damage_stops_the_member(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        place.member.state.store.readable("no revision")  # type: ignore[arg-type]

    monkeypatch.setattr("kvorum.member.peer_requests.json.loads", damaged)
    with pytest.raises(MemberStopped):
        place.ask(1, "GET", peer_requests.HASH_KV_PATH, b"{}")
    assert not place.caught


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1_0", "\u0661", "18446744073709551616"])
def test_no_number_of_a_member(place: Place, number: str) -> None:
    status, text = place.ask(1, "POST", f"/members/promote/{number}")
    assert (status, text) == (404, f"member {number} not found in cluster\n".encode())
    assert not place.caught
    place.check_alive()


@pytest.mark.parametrize("body", [NESTED, b"9" * 5000, b'{"revision":1e400}', b"\xff"])
def test_no_question(place: Place, body: bytes) -> None:
    status, _ = place.ask(1, "GET", peer_requests.HASH_KV_PATH, body)
    assert status in (400, 413)
    assert not place.caught
    place.check_alive()


# Other members answer.


@pytest.mark.parametrize("body", [NESTED, b"9" * 5000, b'{"OK":true,"Now":{}}', b"\xff", b"{}"])
def test_no_answer_to_a_probe(place: Place, body: bytes) -> None:
    place.pass_time(5.0)
    place.answer(PROBING, body)
    assert not place.caught
    # It goes on probing.
    asked = len(place.dialer.targets)
    place.pass_time(5.0)
    assert PROBING in list(place.dialer.targets.values())[asked:]
    place.check_alive()


@pytest.mark.parametrize("body", [NESTED, b"9" * 5000, b"[]", b'{"etcdserver":1}', b"\xff"])
def test_no_versions(body: bytes) -> None:
    assert polling.server_version(Answer(200, {}, body)) is None


def test_an_answer_that_slips_is_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    def steps() -> Steps:
        told.append((yield Ask(OTHER.id, "GET", peer_requests.HASH_KV_PATH, b"")))
        return None

    place.member.start(None, MEMBER, steps())
    place.harness.settle()
    with monkeypatch.context() as planted:
        planted.setattr(peer_requests, "parse_hash", slips)
        planted.setitem(peer_requests._PARSERS, peer_requests.HASH_KV_PATH, slips)
        place.answer(peer_requests.HASH_KV_PATH, b"{}")
    place.harness.settle()
    assert told == [None]
    assert place.caught == {"dial": 1}
    place.check_alive()


def test_a_probe_that_slips(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.pass_time(5.0)
    with monkeypatch.context() as planted:
        planted.setattr(probing, "read_probe", slips)
        place.answer(PROBING, b"{}")
    assert place.caught == {"dial": 1}
    place.pass_time(5.0)
    place.check_alive()


# What is in the data, and what raft is told.


def test_a_member_without_an_address_is_not_dialed(place: Place) -> None:
    nowhere = decode_member(b'{"id":9,"peerURLs":null,"name":"nowhere"}')
    place.peering._add([nowhere], place.harness.now)
    assert 9 not in place.peering.transport.peers
    told: list[Answer | None] = []
    place.peering._ask_version(nowhere, told.append)
    assert told == [None]
    place.check_alive()


def test_half_a_character_is_replaced_as_go_does() -> None:
    member = decode_member(b'{"id":9,"peerURLs":["http://\\ud800:1"],"name":"\\udc00"}')
    assert (member.peer_urls, member.name) == (("http://\ufffd:1",), "\ufffd")


@pytest.mark.parametrize("term", [(1 << 64) - 1, (1 << 63) + 1, 1 << 40])
def test_a_term_without_a_successor_is_refused(place: Place, term: int) -> None:
    own = place.member.term
    heartbeat = Message(MessageType.HEARTBEAT, to=place.member.id, sender=OTHER.id, term=term)
    cluster = f"{place.member.state.cluster.cluster_id:x}"
    said = [("x-etcd-cluster-id", cluster), ("x-server-version", "3.7.1")]
    said.append(("x-min-cluster-version", "3.0.0"))
    assert place.ask(1, "POST", "/raft", encode_message(heartbeat), said)[0] == 204
    assert place.member.term == own and place.member.is_leader
    place.check_alive()
