"""Snapshots with their databases: whole and durable, or not at all; bounded on both sides."""

import errno
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.network.dialer.interface import WRITABLE_BYTES
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.raft.messages import ConfState, Message, MessageType, Snapshot
from kvorum.raft.wire import encode_message
from kvorum.state.membership.documents import encode_conf_state
from kvorum.storage.backend import install, open_view
from kvorum.storage.backend.bbolt import write_image
from kvorum.storage.backend.buckets import CONF_STATE, CONSISTENT_INDEX, KEY, META, TERM
from kvorum.storage.backend.copies import Copying
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.backend.transfer import dump_image
from kvorum.storage.files import Opening
from kvorum.storage.files.interface import read_file, write_file
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap import RemoveLeftovers, database_path
from tests.server.peer.transport.messages import heartbeat, member_headers
from tests.server.peer.transport.network import (
    SNAP_DIRECTORY,
    Client,
    Connection,
    Host,
    Network,
    Transfer,
)

INDEX = 1000
IMAGE = "/snap/tmp.image.1"
PIECE_BYTES = 1 << 12


def message(sender: int, to: int, index: int = INDEX) -> Message:
    snapshot = Snapshot(index, 3, ConfState((1, 2)), b"members")
    return Message(MessageType.SNAP, to, sender, 3, snapshot=snapshot)


def content(length: int) -> bytes:
    return bytes(range(251)) * (length // 251) + bytes(length % 251)


class Pair:
    """Two hosts, the first of which has an image to send."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.network = Network(seed)
        self.one, self.other = self.network.group(1, 2, snapshot_piece_bytes=PIECE_BYTES)
        self.network.piece_bytes_max = PIECE_BYTES
        self.image = content(length)
        write_file(self.one.files, IMAGE, self.image)
        self.transfer = Transfer(message(1, 2), IMAGE)

    def send(self) -> None:
        self.one.transport.send_snapshot(self.transfer, self.network.now)
        self.one.wake_at = self.network.now

    def reported(self) -> bool:
        return bool(self.one.node.transfers)

    def received(self) -> list[Message]:
        return [each for each in self.other.node.received if each.type == MessageType.SNAP]

    def assert_nothing_is_left(self) -> None:
        assert self.other.files.list(SNAP_DIRECTORY) == []
        assert self.other.files.open_descriptors() == 0


@given(
    st.integers(0, 5 * PIECE_BYTES) | st.sampled_from([PIECE_BYTES, 2 * PIECE_BYTES]), st.integers()
)
@settings(max_examples=30, deadline=None)
def test_a_snapshot_arrives_whole_and_before_the_node_is_told(length: int, seed: int) -> None:
    pair = Pair(length, seed)
    other = pair.other
    found: list[bytes] = []
    receive = other.node.receive

    def take(message: Message) -> None:
        image = other.files.after_power_cut(lambda: False)
        found.append(read_file(image, database_path(SNAP_DIRECTORY, INDEX)))
        receive(message)

    other.node.receive = take  # type: ignore[method-assign]
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.one.node.transfers == [(pair.transfer, False)]
    assert other.node.received == [pair.transfer.message]
    assert found == [pair.image]
    assert other.files.list(SNAP_DIRECTORY) == [f"{INDEX:016x}.snap.db"]
    assert other.files.open_descriptors() == 0 == pair.one.files.open_descriptors()


def test_the_body_is_the_message_and_the_file() -> None:
    pair = Pair(5000)
    seen = b""
    handle = pair.network.ask

    def note(connection: Connection, kind: int, detail: Any) -> None:
        nonlocal seen
        if connection.target == "/raft/snapshot" and kind == EdgeEventKind.MESSAGE:
            seen += detail
        handle(connection, kind, detail)

    pair.network.ask = note  # type: ignore[method-assign]
    pair.send()
    pair.network.run_until(pair.reported)
    encoded = encode_message(pair.transfer.message)
    assert seen == pack(">Q", len(encoded)) + encoded + pair.image
    (request,) = [each for each in pair.network.opened if each[3] == "/raft/snapshot"]
    assert request[4]["content-type"] == "application/octet-stream"


def test_a_slow_disk_holds_the_sender_back() -> None:
    pair = Pair(200 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    paused = 0
    pause = pair.other.pause

    def note(call: int) -> None:
        nonlocal paused
        paused += 1
        pause(call)

    pair.other.pause = note  # type: ignore[method-assign]
    pair.send()
    pair.network.run_until(pair.reported, seconds=60)
    assert pair.received() == [pair.transfer.message]
    assert read_file(pair.other.files, database_path(SNAP_DIRECTORY, INDEX)) == pair.image
    assert paused > 0
    assert pair.one.log.about("is sending the snapshot at index 1000 to 2")
    assert pair.other.log.about("is receiving a snapshot")


def test_a_receiver_that_takes_no_more_leaves_few_pieces_in_memory() -> None:
    pair = Pair(400 * PIECE_BYTES)
    network, node = pair.network, pair.one.node
    read_bytes = 0
    submit = node.submit

    def count(work: Any, done: Any, failed: Any) -> None:
        nonlocal read_bytes
        read_bytes += work.length
        submit(work, done, failed)

    node.submit = count  # type: ignore[method-assign]
    pair.other.node.job_seconds = 25.0  # its disk stands still
    pair.send()
    network.run(20)
    (connection,) = [each for each in network.requests.values() if each.target == "/raft/snapshot"]
    assert connection.is_paused
    assert connection.request_bytes < WRITABLE_BYTES + PIECE_BYTES
    # The receiver has two pieces and what made the second whole; the sender has one ahead.
    assert read_bytes <= connection.request_bytes + (3 + 1) * PIECE_BYTES
    pair.other.node.job_seconds = 0.0
    network.run_until(pair.reported, seconds=60)
    assert read_file(pair.other.files, database_path(SNAP_DIRECTORY, INDEX)) == pair.image


def test_messages_go_on_beside_a_snapshot() -> None:
    pair = Pair(50 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    pair.send()
    pair.network.run(0.5)
    pair.one.send_messages(heartbeat(pair.one, pair.other))
    pair.network.run_until(lambda: heartbeat(pair.one, pair.other) in pair.other.node.received)
    assert not pair.reported()


@pytest.mark.parametrize("name", ["create", "pwrite", "fdatasync", "rename", "sync_directory"])
def test_a_disk_that_fails_is_answered_and_leaves_no_half_file(name: str) -> None:
    pair = Pair(10 * PIECE_BYTES)

    def fail(call: DiskCall) -> None:
        if call.name == name:
            raise OSError(errno.EIO, "Input/output error", call.path)

    pair.other.files.before = fail
    pair.send()
    pair.network.run_until(pair.reported)
    pair.network.run(1)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    assert pair.one.log.about("500 failed to save KV snapshot")
    assert pair.received() == []
    pair.other.files.before = None
    if name == "sync_directory":  # it has its name by then, and is whole
        assert read_file(pair.other.files, database_path(SNAP_DIRECTORY, INDEX)) == pair.image
        pair.other.files.unlink(database_path(SNAP_DIRECTORY, INDEX))
    pair.assert_nothing_is_left()
    # The next one is taken.
    pair.one.node.transfers.clear()
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.received() == [pair.transfer.message]


def test_a_full_disk_is_answered_and_freed() -> None:
    pair = Pair(10 * PIECE_BYTES)
    pair.other.files.bytes_max = 5 * PIECE_BYTES
    pair.send()
    pair.network.run_until(pair.reported)
    pair.network.run(1)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    pair.assert_nothing_is_left()


def test_a_snapshot_that_breaks_off_leaves_nothing() -> None:
    pair = Pair(200 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    pair.send()
    pair.network.run(2)
    assert pair.other.files.list(SNAP_DIRECTORY) == [f"tmp.{INDEX:016x}.snap.db"]
    pair.network.cut(pair.one, pair.other)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    assert 2 in pair.one.node.lost
    pair.network.run(1)
    pair.assert_nothing_is_left()


def test_an_image_that_cannot_be_read_is_reported() -> None:
    pair = Pair(100)
    pair.one.files.unlink(IMAGE)
    pair.send()
    pair.network.run_until(pair.reported)
    pair.network.run(1)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    assert pair.received() == []
    pair.assert_nothing_is_left()


def test_a_snapshot_of_which_nothing_moves_is_given_up_on_both_sides() -> None:
    pair = Pair(200 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    pair.send()
    pair.network.run(2)
    pair.network.silence(pair.one, pair.other)
    pair.network.silence(pair.other, pair.one)
    pair.network.run_until(pair.reported, seconds=100)
    assert pair.one.log.about("nothing moved for 30 s")
    pair.network.run(40)
    assert pair.other.log.about("nothing of the snapshot came for too long")
    pair.assert_nothing_is_left()


def test_a_snapshot_for_nobody_known_fails_at_once() -> None:
    network = Network()
    one = network.add(1)
    transfer = Transfer(message(1, 2), IMAGE)
    one.transport.send_snapshot(transfer, network.now)
    assert one.node.transfers == [(transfer, True)]


def test_a_peer_that_is_removed_gets_no_more_of_its_snapshot() -> None:
    pair = Pair(200 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    pair.send()
    pair.network.run(1)
    pair.one.transport.remove_peer(2)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    pair.network.run(15)  # what was on its way comes first
    pair.assert_nothing_is_left()


def test_one_snapshot_at_a_time() -> None:
    pair = Pair(100 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    pair.send()
    second = Transfer(message(1, 2, INDEX + 1), IMAGE)
    pair.one.transport.send_snapshot(second, pair.network.now)
    assert pair.one.node.transfers == [(second, True)]
    pair.network.run(1)
    # Another sender, with the same index even, is asked to come back.
    client = Client(pair.network)
    assert client.asked(pair.other, "POST", "/raft/snapshot", member_headers(), body(2)) == 503
    pair.network.run_until(lambda: len(pair.one.node.transfers) == 2, seconds=60)
    assert read_file(pair.other.files, database_path(SNAP_DIRECTORY, INDEX)) == pair.image


def body(to: int, kind: int = MessageType.SNAP) -> bytes:
    made = message(1, to)
    made.type = kind
    encoded = encode_message(made)
    return pack(">Q", len(encoded)) + encoded + b"database"


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (b"", 400, b"failed to decode raft message (unexpected EOF)\n"),
        (b"\0" * 7, 400, b"failed to decode raft message (unexpected EOF)\n"),
        (pack(">Q", 10) + b"abc", 400, b"failed to decode raft message (unexpected EOF)\n"),
        (pack(">Q", (64 << 20) + 1), 400, b"failed to decode raft message ("),
        (pack(">Q", 3) + b"\xff\xff\xff", 400, b"failed to decode raft message ("),
        (body(1, MessageType.HEARTBEAT), 400, b"wrong raft message type\n"),
        (pack(">Q", 2) + b"\x08\x07", 400, b"wrong raft message type\n"),
        (body(9), 500, b"error processing raft message\n"),
        (body(1), 204, b""),
    ],
)
def test_bad_snapshots_are_refused(sent: bytes, status: int, text: bytes) -> None:
    network = Network()
    one, client = network.add(1), Client(network)
    assert client.asked(one, "POST", "/raft/snapshot", member_headers(), sent) == status
    ((_, answer),) = client.bodies.items()
    assert answer.startswith(text)
    network.run(1)
    names = one.files.list(SNAP_DIRECTORY)
    assert names == ([f"{INDEX:016x}.snap.db"] if status == 204 else [])
    assert len(one.node.received) == (status == 204)


def test_a_length_past_the_limit_is_refused_before_anything_follows() -> None:
    network = Network()
    one, client = network.add(1), Client(network)
    connection = client.request(one, "POST", "/raft/snapshot", member_headers(), None)
    network.ask(connection, EdgeEventKind.MESSAGE, pack(">Q", 1 << 62))
    network.run(1)
    assert client.statuses[connection.number] == 400


def test_stopping_while_a_snapshot_comes_leaves_at_most_what_the_next_start_removes() -> None:
    pair = Pair(200 * PIECE_BYTES)
    pair.other.node.job_seconds = 0.05
    pair.send()
    pair.network.run(1)
    other: Host = pair.other
    other.transport.stop()
    RemoveLeftovers(SNAP_DIRECTORY).run(other.files)
    assert other.files.list(SNAP_DIRECTORY) == []


# Copies of databases, between members that keep theirs alike.


MEMBERS = ConfState((2, 1))


def meta(index: int = INDEX, term: int = 3, state: ConfState = MEMBERS) -> dict[bytes, bytes]:
    """Return what a database says of itself."""
    return {
        CONSISTENT_INDEX: index.to_bytes(8, "big"),
        TERM: term.to_bytes(8, "big"),
        CONF_STATE: encode_conf_state(state),
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a copy of a database with a few hundred rows."""
    directory = str(tmp_path_factory.mktemp("copy"))
    files, environments = RealFiles(), LmdbEnvironments()
    rows = [(row_key(revision_of(main)), b"v" * main) for main in range(2, 300)]
    install(files, environments, directory, [(KEY, rows), (META, sorted(meta().items()))])
    copying = Copying(files, environments, directory, PRODUCTION.view_scan_entries)
    copying.write(files, f"{directory}/copy")
    copying.end()
    return read_file(files, f"{directory}/copy")


class CopyPair(Pair):
    """Two hosts that may take copies, the first of which has one to send."""

    def __init__(
        self, image: bytes, formats: tuple[str, str] = ("1-lmdb", "1-lmdb"), *, is_copy: bool = True
    ) -> None:
        self.network = Network(0)
        self.one, self.other = (
            self.network.add(
                number,
                snapshot_piece_bytes=PIECE_BYTES,
                copy_format=each,
                compares_databases=True,
            )
            for number, each in zip((1, 2), formats, strict=True)
        )
        self.one.know(self.other)
        self.other.know(self.one)
        self.network.piece_bytes_max = PIECE_BYTES
        self.image = image
        write_file(self.one.files, IMAGE, image)
        self.transfer = Transfer(message(1, 2), IMAGE, is_copy=is_copy)
        self.network.run_until(lambda: 2 in self.one.node.connections)


def test_a_copy_is_sent_to_a_peer_of_the_same_format(copy: bytes) -> None:
    pair = CopyPair(copy, ("1-lmdb", "1-lmdb"))
    pair.network.run_until(lambda: pair.one.transport.takes_copies(2))
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.one.node.transfers == [(pair.transfer, False)]
    assert read_file(pair.other.files, database_path(SNAP_DIRECTORY, INDEX)) == copy


@pytest.mark.parametrize(
    "formats", [("1-lmdb", ""), ("", "1-lmdb"), ("1-lmdb", "2-lmdb"), ("", "")]
)
def test_a_peer_of_another_format_is_not_taken_for_one_that_takes_copies(
    copy: bytes, formats: tuple[str, str]
) -> None:
    pair = CopyPair(copy, formats)
    pair.network.run_until(lambda: 1 in pair.other.node.connections)
    assert not pair.one.transport.takes_copies(2)
    assert not pair.other.transport.takes_copies(1)


def test_a_peer_that_no_longer_knows_copies_gets_no_other(copy: bytes) -> None:
    """It was replaced by an older version since it said that it takes them."""
    pair = CopyPair(copy, ("1-lmdb", ""))
    pair.one.transport.peers[2].takes_copies = True
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    assert not pair.one.transport.takes_copies(2)
    pair.assert_nothing_is_left()


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_copy_that_is_not_whole_is_refused(copy: bytes, data: st.DataObject) -> None:
    damaged = bytearray(copy)
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(copy) - 1)) :]
    else:
        # A value, which nothing but its checksum guards.
        place = copy.index(b"v" * 250) + data.draw(st.integers(0, 249))
        damaged[place] ^= data.draw(st.integers(1, 255))
    pair = CopyPair(bytes(damaged), ("1-lmdb", "1-lmdb"))
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    assert pair.received() == []
    pair.network.run_until(lambda: pair.other.files.list(SNAP_DIRECTORY) == [])
    pair.assert_nothing_is_left()


OTHERS = [
    meta(index=INDEX - 1),
    meta(index=INDEX + 1),
    meta(term=4),
    meta(state=ConfState((1, 2, 3))),
    meta(state=ConfState((1,), (2,))),
    meta() | {CONF_STATE: b"{"},
    {},
]


def database(directory: Path, found: dict[bytes, bytes], *, is_copy: bool) -> bytes:
    """Return a copy, or a file of etcd's format, that says this of itself."""
    files, environments = RealFiles(), LmdbEnvironments()
    rows = [(row_key(revision_of(main)), b"") for main in range(2, 30)]
    install(files, environments, str(directory), [(KEY, rows), (META, sorted(found.items()))])
    if is_copy:
        copying = Copying(files, environments, str(directory), PRODUCTION.view_scan_entries)
        copying.write(files, f"{directory}/copy")
        copying.end()
    else:
        descriptor = files.open(f"{directory}/copy", Opening.CREATE)
        with open_view(files, environments, str(directory)) as view:
            write_image(files, descriptor, dump_image(view, PRODUCTION.image_piece_entries))
        files.close(descriptor)
    return read_file(files, f"{directory}/copy")


@pytest.mark.parametrize("is_copy", [True, False])
@pytest.mark.parametrize("found", OTHERS)
def test_a_database_of_another_snapshot_is_refused(
    tmp_path: Path, found: dict[bytes, bytes], *, is_copy: bool
) -> None:
    """A member that installed it would stop, at every start again."""
    pair = CopyPair(database(tmp_path, found, is_copy=is_copy), is_copy=is_copy)
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.one.node.transfers == [(pair.transfer, True)]
    assert pair.received() == []
    assert pair.other.log.about("cannot save a snapshot: ")
    pair.network.run_until(lambda: pair.other.files.list(SNAP_DIRECTORY) == [])
    pair.assert_nothing_is_left()


@pytest.mark.parametrize("is_copy", [True, False])
@pytest.mark.parametrize("lacking", [(), (TERM,), (CONF_STATE, TERM)])
def test_a_database_that_older_members_wrote_is_taken(
    tmp_path: Path, lacking: tuple[bytes, ...], *, is_copy: bool
) -> None:
    found = {name: value for name, value in meta().items() if name not in lacking}
    pair = CopyPair(database(tmp_path, found, is_copy=is_copy), is_copy=is_copy)
    pair.send()
    pair.network.run_until(pair.reported)
    assert pair.received() == [pair.transfer.message]
