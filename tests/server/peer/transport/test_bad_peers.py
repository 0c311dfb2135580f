"""Peers that say anything: garbage in every place, which is refused or bounded and never raises."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.network.dialer.interface import DialEvent
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.raft.entries import Entry
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message
from tests.server.peer.transport.messages import append, heartbeat, member_headers
from tests.server.peer.transport.network import SNAP_DIRECTORY, Client, Host, Network, is_joined

NAMES = ["x-server-from", "x-server-version", "x-min-cluster-version", "x-etcd-cluster-id"]
NAMES += ["x-raft-to", "x-peerurls", "content-type"]
VALUES = [
    "",
    "1",
    "2",
    "3.7.1",
    "3.0.0",
    "9.9.9",
    "cdf818194e3a8c32",
    "http://host2:2380",
    "http://",
]
TARGETS = ["/raft", "/raft/", "/raft/snapshot", "/raft/probing", "/raft/stream/message/2"]
TARGETS += ["/raft/stream/msgapp/2", "/raft/stream/", "/raft/stream/message/", "/raft/stream/x/2"]
TARGETS += ["/raft/probing?x=1", "/raft/stream/message/%32", "/raft/nothing"]

texts = st.sampled_from(VALUES) | st.text(max_size=8)
header_lists = st.lists(st.tuples(st.sampled_from(NAMES), texts), max_size=8)
messages = st.builds(Message, st.integers(0, 23), st.integers(0, 3), st.integers(0, 3))
bodies = st.one_of(
    st.binary(max_size=60),
    messages.map(encode_message),
    messages.map(encode_message).map(lambda data: len(data).to_bytes(8, "big") + data + b"file"),
)


@given(
    st.sampled_from(["GET", "POST", "PUT", "", "DELETE"]),
    st.sampled_from(TARGETS),
    header_lists | st.just(member_headers()),
    bodies,
)
def test_any_request_is_answered(
    method: str, target: str, given_headers: list[tuple[str, str]], body: bytes
) -> None:
    network = Network()
    one, other = network.group(1, 2)
    network.run_until(lambda: is_joined(one, other))
    client = Client(network)
    connection = client.request(one, method, target, given_headers, body)
    network.run(3)
    assert connection.number in client.statuses
    # It is as well as before.
    one.send_messages(heartbeat(one, other))
    network.run_until(lambda: heartbeat(one, other) in other.node.received)
    assert [name for name in one.files.list(SNAP_DIRECTORY) if name.startswith("tmp")] == []


class Liar:
    """In the place of a transport: answers anything to anything."""

    def __init__(self, host: Host, seed: int) -> None:
        self._host = host
        self._random = random.Random(seed)

    def serves(self, _method: str, _target: str) -> bool:
        return True

    def pass_time(self, now: float) -> float:
        return now + 1.0

    def open_request(
        self, call: int, _method: str, _target: str, _headers: object, _now: float
    ) -> None:
        choose = self._random
        status = choose.choice([200, 200, 200, 204, 404, 410, 412, 500, 100, 999])
        version = choose.choice(["3.7.1", "3.7.1", "", "garbage", "2.0.0"])
        answer = [("x-server-version", version)]
        self._host.respond(call, status, answer, choose.choice([None, None, b"", b"text"]))
        for _ in range(choose.randrange(4)):
            piece = choose.choice(
                [choose.randbytes(choose.randrange(1, 40)), b"\0", b"\x01" + bytes(16)]
            )
            self._host.send([(call, piece)])

    def handle(self, _kind: int, _call: int, _detail: object, _now: float) -> None:
        pass

    def handle_answer(self, _event: DialEvent, _now: float) -> bool:
        return True


@given(st.integers(0, 1 << 32))
@settings(max_examples=50, deadline=None)
def test_any_answer_is_borne(seed: int) -> None:
    network = Network(seed)
    one, other, liar = network.group(1, 2, 3)
    liar.transport.stop()
    liar.transport = Liar(liar, seed)  # type: ignore[assignment]
    network.run_until(lambda: is_joined(one, other))
    for index in range(20):
        one.send_messages(heartbeat(one, liar), append(one, liar, index))
        network.run(0.5)
    # What is wrong is said, but not over and over.
    assert len(one.log.lines) < 150
    one.send_messages(heartbeat(one, other))
    network.run_until(lambda: heartbeat(one, other) in other.node.received)


def test_an_endless_answer_to_a_small_question_is_not_kept() -> None:
    """The body of a refusal, of a probe's answer and of a post's is read to a bound."""
    network = Network()
    one, other = network.add(1), network.add(2)
    answered = 0

    class Endless(Liar):
        def open_request(self, call: int, *_: object) -> None:
            nonlocal answered
            answered += 1
            other.respond(call, 404, (), None)
            for _piece in range(100):
                other.send([(call, bytes(10_000))])

    other.transport = Endless(other, 0)  # type: ignore[assignment]
    one.transport.add_peer(2, other.urls, network.now)
    one.send_messages(Message(MessageType.HEARTBEAT, 2, 1, 1))
    network.run(10)
    assert answered >= 4
    assert all(len(line) < 2000 for line in one.log.lines)


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> tuple[object, ...]:
        network = Network(seed)
        hosts = network.group(1, 2, 3)
        network.piece_bytes_max = 7
        network.run(1)
        for index in range(10):
            hosts[0].send_messages(*[append(hosts[0], other, index) for other in hosts[1:]])
            network.run(0.3)
        network.cut(hosts[0], hosts[1])
        network.run(10)
        network.mend(hosts[0], hosts[1])
        network.run(10)
        return (
            [host.log.lines for host in hosts],
            [host.node.received for host in hosts],
            network.opened,
        )

    assert history(5) == history(5)


def test_a_request_that_ends_at_any_moment_leaves_nothing_behind() -> None:
    for moment in range(4):
        network = Network()
        one, client = network.add(1), Client(network)
        for target in ("/raft", "/raft/snapshot"):
            connection = client.request(one, "POST", target, member_headers(), None)
            for _ in range(moment):
                network.ask(connection, EdgeEventKind.MESSAGE, b"\0\0\0")
            network.ask(connection, EdgeEventKind.ENDED, None)
        network.run(1)
        assert one.files.list(SNAP_DIRECTORY) == []
        good = encode_message(Message(MessageType.HEARTBEAT, 1, 2, 3))
        assert client.asked(one, "POST", "/raft", member_headers(), good) == 204


def test_what_is_refused_is_told_again_after_a_while() -> None:
    network = Network()
    one, _ = network.group(1, 2)
    client = Client(network)
    wrong = [("X-Etcd-Cluster-ID", "1"), *member_headers()]
    for _ in range(5):
        assert client.asked(one, "POST", "/raft", wrong, b"") == 412
    assert len(one.log.about("cluster ID mismatch")) == 1
    network.run(61)
    assert client.asked(one, "POST", "/raft", wrong, b"") == 412
    lines = one.log.about("cluster ID mismatch")
    assert len(lines) == 2 and lines[1].endswith("(and 4 times more since it was logged)")


def test_a_flood_of_different_lines_is_counted_and_ends() -> None:
    network = Network()
    one, _ = network.group(1, 2)
    client = Client(network)

    def refuse(sender: int) -> None:
        said = [("X-Etcd-Cluster-ID", "1"), ("X-Server-From", f"{sender:x}"), *member_headers()]
        client.asked(one, "POST", "/raft", said, b"")

    for sender in range(300):
        refuse(sender)
    assert 200 < len(one.log.about("cluster ID mismatch")) < 300
    network.run(61)
    refuse(301)
    assert one.log.about("of 12d: cluster ID mismatch")
    assert one.log.about("a flood of bad requests")


def test_entries_from_the_future_are_refused() -> None:
    network = Network()
    one, _ = network.group(1, 2)
    client = Client(network)
    message = Message(MessageType.APP, to=1, sender=2, term=3, entries=[Entry(0, 4, 1)])
    assert client.asked(one, "POST", "/raft", member_headers(), encode_message(message)) == 400
    assert one.node.received == []


def test_two_processes_that_speak_as_one_member_are_told_of() -> None:
    network = Network()
    one, other = network.group(1, 2)
    network.run_until(lambda: is_joined(one, other))
    network.run(20)
    assert not one.log.about("two processes")
    double = network.add(2, "http://double:2380")
    double.know(one)
    network.run(5)
    (line,) = one.log.about("two processes speak as member 2")
    assert "http://host2:2380" in line and "http://double:2380" in line
    # A stream that changes hands ten times a second is not told of each time.
    assert len(one.log.about("anew")) < 10
    network.run(60)
    assert len(one.log.about("two processes")) == 2


def test_a_member_that_comes_back_is_no_double() -> None:
    network = Network()
    one, other = network.group(1, 2)
    network.run_until(lambda: is_joined(one, other))
    for _ in range(5):
        # Its connections were not closed here when it asks for the streams again.
        network.silence(other, one)
        network.run(6)
        network.mend(other, one)
        network.run(6)
    assert is_joined(one, other)
    assert not one.log.about("two processes")
