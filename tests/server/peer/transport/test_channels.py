"""Which way messages take between transports, and what happens when a way is closed."""

import pytest

from kvorum.network.edge.interface import EdgeEventKind
from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, Message, MessageType, Snapshot
from kvorum.raft.wire import encode_message
from kvorum.server.peer.transport.settings import LINK_HEARTBEAT_SECONDS
from tests.server.peer.transport.messages import append, heartbeat, member_headers
from tests.server.peer.transport.network import CLUSTER, Client, Host, Network, is_joined


def pair(**options: object) -> tuple[Network, Host, Host]:
    network = Network()
    one, other = network.group(1, 2, **options)
    network.run_until(lambda: is_joined(one, other))
    network.run(0.1)  # the other two streams
    return network, one, other


def posts(network: Network) -> list[str]:
    return [target for _, _, method, target, _ in network.opened if method == "POST"]


def test_each_side_asks_for_two_streams_and_says_who_it_is() -> None:
    network, _, _ = pair()
    assert sorted(each[:4] for each in network.opened) == [
        (1, 2, "GET", "/raft/stream/message/1"),
        (1, 2, "GET", "/raft/stream/msgapp/1"),
        (2, 1, "GET", "/raft/stream/message/2"),
        (2, 1, "GET", "/raft/stream/msgapp/2"),
    ]
    for sender, receiver, _, _, headers in network.opened:
        assert headers == {
            "x-server-from": f"{sender}",
            "x-server-version": "3.7.1",
            "x-min-cluster-version": "3.0.0",
            "x-etcd-cluster-id": "cdf818194e3a8c32",
            "x-peerurls": f"http://host{sender}:2380",
            "x-raft-to": f"{receiver}",
        }


def test_messages_take_the_streams_in_order() -> None:
    network, one, other = pair()
    sent = [append(one, other, 5, 3), heartbeat(one, other), append(one, other, 8)]
    one.send_messages(*sent)
    network.run_until(lambda: len(other.node.received) == 3)
    appends = [each for each in other.node.received if each.type == MessageType.APP]
    assert [each.index for each in appends] == [5, 8]
    assert heartbeat(one, other) in other.node.received
    assert posts(network) == []


def test_what_has_no_stream_yet_is_posted() -> None:
    network = Network()
    one, other = network.group(1, 2)
    sent = [append(one, other, 5), heartbeat(one, other)]
    one.send_messages(*sent)
    network.run_until(lambda: len(other.node.received) == 2)
    assert other.node.received == sent
    assert posts(network) == ["/raft", "/raft"]


def test_a_snapshot_inside_its_message_is_posted_and_reported() -> None:
    network, one, other = pair(snap_directory=None)
    snapshot = Snapshot(7, 1, ConfState((1, 2)), b"everything")
    message = Message(MessageType.SNAP, other.id, one.id, 1, snapshot=snapshot)
    one.send_messages(message)
    network.run_until(lambda: bool(one.node.transfers))
    assert other.node.received == [message]
    transfer, failed = one.node.transfers[0]
    assert (transfer.message, failed) == (message, False)


def test_a_snapshot_whose_database_is_missing_is_left_out() -> None:
    network, one, other = pair()
    snapshot = Snapshot(7, 1, ConfState((1, 2)), b"")
    one.send_messages(Message(MessageType.SNAP, other.id, one.id, 1, snapshot=snapshot))
    network.run_until(lambda: bool(one.node.transfers))
    assert other.node.received == []


def test_a_message_is_posted_at_most_once_whatever_becomes_of_it() -> None:
    network = Network()
    one, other = network.add(1), network.add(2)
    one.know(other)
    network.silence(other, one)  # it arrives, but the answer does not
    proposal = Message(MessageType.PROP, 2, 1, entries=[Entry(0, 0, 0, b"once")])
    one.send_messages(proposal)
    network.run_until(lambda: one.node.lost == [2])
    network.mend(one, other)
    other.know(one)
    network.run(10)
    assert other.node.received == [proposal]


def test_a_queue_of_posts_has_an_end() -> None:
    network = Network()
    one, other = network.add(1), network.add(2)
    one.know(other)
    network.silence(one, other)
    one.send_messages(*[heartbeat(one, other, term) for term in range(1, 80)])
    assert one.node.lost == [2] * (79 - 64 - 4)
    assert len(one.log.about("drops messages to 2")) == 1
    network.mend(one, other)
    network.run_until(lambda: len(other.node.received) == 68)
    one.send_messages(heartbeat(one, other, 100))
    assert not one.log.about("sent again")
    other.know(one)
    network.run(10)
    one.send_messages(heartbeat(one, other, 100))
    assert one.log.about("sent again")


def test_of_acknowledgements_the_last_says_it_all() -> None:
    network, one, other = pair()

    def acknowledged(index: int, *, reject: bool = False) -> Message:
        return Message(MessageType.APP_RESP, 2, 1, 1, index=index, reject=reject)

    one.send_messages(acknowledged(1), heartbeat(one, other), acknowledged(2), acknowledged(3))
    network.run_until(lambda: len(other.node.received) == 2)
    assert other.node.received == [heartbeat(one, other), acknowledged(3)]
    other.node.received.clear()
    mixed = [acknowledged(4), acknowledged(9, reject=True), acknowledged(5), acknowledged(4)]
    one.send_messages(*mixed)
    network.run_until(lambda: len(other.node.received) == 4)
    assert other.node.received == mixed


def test_messages_to_nobody_known_are_dropped() -> None:
    network, one, _ = pair()
    one.send_messages(Message(MessageType.HEARTBEAT, 77, 1, 1), Message(MessageType.APP, 0, 1, 1))
    network.run(1)
    assert one.node.lost == []
    assert posts(network) == []


def test_what_only_a_node_itself_says_is_ignored_from_others() -> None:
    network, one, other = pair()
    one.send_messages(
        Message(MessageType.HUP, 2, 1),
        Message(MessageType.CHECK_QUORUM, 2, 1),
        heartbeat(one, other),
    )
    network.run_until(lambda: bool(other.node.received))
    assert other.node.received == [heartbeat(one, other)]


def test_messages_for_another_or_from_a_removed_node_are_ignored_and_logged_once() -> None:
    network, one, other = pair()
    stray = Message(MessageType.HEARTBEAT, 9, 1, 1)
    one.transport.peers[2].send(stray, network.now)
    one.transport.peers[2].send(stray, network.now)
    other.node.removed_nodes.add(7)
    one.transport.peers[2].send(Message(MessageType.HEARTBEAT, 2, 7, 1), network.now)
    one.send_messages(heartbeat(one, other))
    network.run_until(lambda: bool(other.node.received))
    assert other.node.received == [heartbeat(one, other)]
    assert len(other.log.about("ignored a message")) == 2  # once each


def test_silence_is_broken_by_heartbeats_of_the_link() -> None:
    network, one, other = pair()
    connected = dict(one.node.connections)
    network.run(60)
    assert one.node.connections == connected
    assert len(network.opened) - len([each for each in network.opened if "probing" in each[3]]) == 4
    assert other.node.received == []


@pytest.mark.parametrize("seconds", [5.0, 12.0])
def test_a_silent_peer_is_given_up_after_the_read_deadline_and_found_again(seconds: float) -> None:
    network, one, other = pair(read_seconds_max=seconds)
    network.silence(other, one)
    start = network.now
    network.run_until(lambda: 2 not in one.node.connections)
    assert seconds - LINK_HEARTBEAT_SECONDS < network.now - start <= seconds + 0.1
    # It still reads what we say, so it does not miss us.
    assert 1 in other.node.connections
    network.mend(one, other)
    network.run_until(lambda: 2 in one.node.connections)
    assert len(one.log.about("silent for too long")) == 2  # one of each stream
    network.run(seconds + 2)
    assert len(one.log.about("of 2 at http://host2:2380 again")) == 2


def test_a_cut_link_is_dialed_again_and_logged_once() -> None:
    network, one, other = pair()
    network.cut(one, other)
    network.run(20)
    assert one.node.connections == {} == other.node.connections
    assert set(one.node.lost) == {2}
    refused = one.log.about("connection refused")
    assert len(refused) == 3, refused  # two streams and the probe, once each
    network.mend(one, other)
    network.run_until(lambda: is_joined(one, other))
    one.send_messages(heartbeat(one, other))
    network.run_until(lambda: bool(other.node.received))


def test_a_peer_is_gone_if_a_stream_broke_and_nobody_listens() -> None:
    network, one, other = pair()
    for connection in list(network.requests.values()):
        network._break(connection)
    network.run(5)
    assert one.node.gone == [], "its connections merely broke"
    network.cut(one, other)
    network.run(5)
    assert one.node.gone == [other.id] * 2, "told once by each stream"
    network.mend(one, other)
    network.run_until(lambda: is_joined(one, other))
    network.cut(one, other)
    network.run_until(lambda: one.node.gone == [other.id] * 4)


def test_a_peer_is_not_gone_before_all_its_addresses_refuse() -> None:
    network = Network()
    one, other = network.add(1), network.add(2, "http://b:1", "http://b:2")
    one.know(other)
    other.know(one)
    network.run_until(lambda: is_joined(one, other))
    del network.hosts["http://b:1"]
    for connection in list(network.requests.values()):
        network._break(connection)
    network.run_until(lambda: is_joined(one, other))
    assert one.node.gone == []


def test_a_host_that_is_not_silent_answers_a_probe() -> None:
    network, one, other = pair()
    assert one.transport.probe_host(other.id)
    network.run(1)
    assert one.node.answering == [other.id]
    network.silence(other, one)
    assert one.transport.probe_host(other.id)
    network.run(1)
    assert one.node.answering == [other.id], "it cannot answer"
    network.mend(one, other)
    network.cut(one, other)
    assert not one.transport.probe_host(other.id), "there is no stream whose host could be asked"
    assert not one.transport.probe_host(99)


def test_dialing_is_not_too_often() -> None:
    network = Network()
    one = network.add(1)
    one.transport.add_peer(2, ["http://nobody:1"], network.now)
    dialed: list[float] = []
    open_connection = network.open

    def counted(*arguments: object) -> object:
        dialed.append(network.now)
        return open_connection(*arguments)  # type: ignore[arg-type]

    network.open = counted  # type: ignore[method-assign,assignment]
    network.run(3.0)
    assert 2 * 25 < len(dialed) <= 2 * 31


def test_the_next_address_is_tried_when_one_fails() -> None:
    network = Network()
    one, other = network.add(1), network.add(2, "http://b:1", "http://b:2")
    one.transport.add_peer(2, ["http://dead:1", "http://dead:2", *other.urls], network.now)
    other.know(one)
    network.run_until(lambda: is_joined(one, other))


def test_addresses_that_all_fail_are_each_told_of_once() -> None:
    network = Network()
    one = network.add(1)
    one.transport.add_peer(2, ["http://dead:1", "http://dead:2"], network.now)
    for _ in range(100):
        one.send_messages(Message(MessageType.HEARTBEAT, 2, 1, 1))
        network.run(0.2)
    assert len(one.log.about("connection refused")) <= 2 * 4


def test_other_addresses_are_used_from_the_next_request_on() -> None:
    network = Network()
    one, other = network.add(1), network.add(2)
    one.transport.add_peer(2, ["http://dead:1"], network.now)
    other.know(one)
    network.run(2)
    assert one.node.connections == {}
    one.transport.update_peer(2, other.urls)
    network.run_until(lambda: is_joined(one, other))


def test_a_removed_node_is_told_so() -> None:
    network, one, other = pair()
    other.node.removed_nodes.add(1)
    other.transport.remove_peer(1)
    assert other.node.connections == {}
    network.run_until(lambda: one.node.is_told_removed)
    assert one.log.about("was removed")


def test_messages_to_a_removed_peer_are_dropped() -> None:
    network, one, other = pair()
    one.transport.remove_peer(2)
    other.transport.remove_peer(1)
    one.send_messages(heartbeat(one, other))
    network.run(5)
    assert other.node.received == []


def test_a_newer_stream_takes_the_place_of_the_older() -> None:
    network, one, other = pair()
    # A second host that says it is the same node: it restarted, and nobody noticed.
    again = network.add(2, "http://again:1")
    again.know(one)
    network.run_until(lambda: 1 in again.node.connections)
    one.send_messages(heartbeat(one, other))
    network.run_until(lambda: bool(again.node.received))
    assert other.node.received == []
    assert one.log.about("reopened its message stream")


@pytest.mark.parametrize("seconds", [5, 12])
def test_a_slow_reader_is_bounded_and_then_given_up(seconds: int) -> None:
    network, one, other = pair(
        stream_pending_bytes_max=100_000, write_seconds_max=seconds, read_seconds_max=30.0
    )
    network.silence(one, other)
    start = network.now
    for index in range(5, 25):
        one.send_messages(append(one, other, index, 100))
    assert one.node.lost
    assert one.transport.peers[2].counters.dropped_messages > 0
    assert one.transport.peers[2].counters.sent_bytes < 150_000
    network.run_until(lambda: bool(one.log.about(f"were not read for {seconds} s")))
    assert abs(network.now - start - seconds) <= LINK_HEARTBEAT_SECONDS
    network.mend(one, other)
    network.run(5)
    one.send_messages(append(one, other, 50))
    network.run_until(lambda: bool(other.node.received))
    assert other.node.received[-1].index == 50


def test_one_batch_is_bounded_too() -> None:
    network, one, other = pair(stream_pending_bytes_max=100_000)
    one.send_messages(*[append(one, other, 5 + 100 * turn, 100) for turn in range(100)])
    assert one.transport.peers[2].counters.sent_bytes < 120_000
    assert one.node.lost
    network.run(1)
    one.send_messages(append(one, other, 7))
    network.run_until(lambda: bool(other.node.received) and other.node.received[-1].index == 7)


@pytest.mark.parametrize(
    "urls",
    [
        ["http://host9:2380"],
        ["unix://localhost:2100012345"],
        ["unixs:///run/nine.sock", "http://host9:70000"],
    ],
)
def test_a_node_that_is_not_known_gets_a_pipeline_by_the_address_it_gives(urls: list[str]) -> None:
    network = Network()
    one, stranger = network.add(1), network.add(9, *urls)
    stranger.know(one)
    network.run_until(lambda: bool(one.log.about("gave its address")))
    one.send_messages(heartbeat(one, stranger))
    network.run_until(lambda: bool(stranger.node.received))
    network.run(1)
    assert len(stranger.log.about("404 error sender not found")) == 2
    assert len(one.log.about("refused a request of 9")) == 1
    one.know(stranger)
    network.run_until(lambda: is_joined(one, stranger))


def test_another_cluster_is_refused_and_said_once() -> None:
    network = Network()
    one, other = network.add(1), network.add(2, cluster_id=7)
    one.know(other)
    other.know(one)
    network.run(10)
    assert one.node.connections == {} == other.node.connections
    for host in (one, other):
        assert len(host.log.about("refused a request")) == 1
        assert len(host.log.about("412 cluster ID mismatch")) == 2
        assert len(host.log.about("--initial-cluster-token")) == 3
    assert one.transport.peers[2].foreign_cluster == 7
    assert other.transport.peers[1].foreign_cluster == CLUSTER


def test_who_is_of_the_same_cluster_or_away_is_no_stranger() -> None:
    network, one, _ = pair()
    network.run(1)
    assert not one.transport.peers[2].foreign_cluster


def test_versions_that_do_not_fit_are_refused() -> None:
    network = Network()
    one, other = network.add(1), network.add(2, version="2.3.8")
    one.know(other)
    other.know(one)
    network.run(10)
    assert one.node.connections == {} == other.node.connections
    assert one.log.about("incompatible version")


def test_a_stream_without_a_version_is_not_read() -> None:
    network = Network()
    one, other = network.group(1, 2)
    other.withheld_headers.add("x-server-version")
    network.run(5)
    assert 2 not in one.node.connections
    assert len(one.log.about("has no such stream")) == 2


def test_probes_tell_of_clocks_and_of_peers_that_do_not_answer() -> None:
    network, one, other = pair()
    other.clock_error = 2.5
    network.run(10)
    counters = one.transport.peers[2].counters
    assert counters.round_trips == 2
    assert 0 < counters.round_trip_seconds < 0.1
    assert len(one.log.about("the clock of 2 differs by 2.5")) == 1
    assert len(other.log.about("the clock of 1 differs by -2.5")) == 1
    other.clock_error = 0.0
    network.run(10)
    assert len(one.log.about("the clock of 2 agrees again")) == 1
    network.cut(one, other)
    network.run(10)
    network.mend(one, other)
    network.run(10)
    assert len(one.log.about("2 does not answer probes")) == 1
    assert len(one.log.about("2 answers probes again")) == 1


@pytest.mark.parametrize("kind", ["message", "msgapp"])
def test_a_stream_that_cannot_be_read_is_closed_and_opened_again(kind: str) -> None:
    network, one, other = pair()
    call = next(
        connection.call
        for (host, _), connection in network.calls.items()
        if host is one and connection.target == f"/raft/stream/{kind}/2"
    )
    one.send([(call, b"\xff" * 64)])
    network.run_until(lambda: bool(other.log.about("cannot be read")))
    network.run(2)
    one.send_messages(append(one, other, 5), heartbeat(one, other))
    network.run_until(lambda: len(other.node.received) == 2)
    assert posts(network) == []


def test_posts_of_too_many_bytes_are_refused_and_free_what_they_held() -> None:
    network = Network()
    one = network.add(1, body_bytes_max=1000, bodies_bytes_max=2500)
    client = Client(network)
    four = [client.request(one, "POST", "/raft", member_headers(), None) for _ in range(4)]
    for connection in four:
        network.ask(connection, EdgeEventKind.MESSAGE, bytes(900))
    network.run(1)
    assert [client.statuses.get(each.number) for each in four] == [None, None, 503, 503]
    network.ask(four[0], EdgeEventKind.MESSAGE, bytes(101))
    network.ask(four[1], EdgeEventKind.ENDED, None)
    network.run(1)
    assert client.statuses[four[0].number] == 413
    assert client.asked(one, "POST", "/raft", member_headers(), b"\xff" * 900) == 400
    good = encode_message(Message(MessageType.HEARTBEAT, 1, 2, 3))
    assert client.asked(one, "POST", "/raft", member_headers(), good) == 204


def test_stopping_ends_everything() -> None:
    network, one, other = pair()
    one.transport.stop()
    assert one.node.connections == {}
    one.is_down = True
    network.run(3)
    assert other.node.connections == {}
    assert not [key for key in network.requests if key[0] is one]
    assert not [key for key in network.calls if key[0] is one]


def test_a_post_that_ends_within_a_number_is_refused() -> None:
    network = Network()
    one = network.add(1)
    assert Client(network).asked(one, "POST", "/raft", member_headers(), b"\x08\xac") == 400
