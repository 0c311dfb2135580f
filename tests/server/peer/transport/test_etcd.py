"""Against a real etcd: what its members say to each other, and what they answer to others.

Our writer, given what our reader made of a captured frame, writes the captured frame, byte for
byte: nothing was lost or misread. But 3.5 writes raftpb with every zero spelled out, where 3.7 and
we leave zeros out. So a frame of 3.5 is compared in two ways: with what was read, spelled out in
its way by protobuf's own encoder; and with the form of our frame, whose bytes are the same where
3.5 spells out nothing.
"""

import http.client
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.pb import raftpb
from kvorum.raft.entries import Entry
from kvorum.raft.messages import Message, MessageType, Snapshot
from kvorum.raft.wire import decode_message, encode_message
from kvorum.server.peer.transport.frames import (
    APPEND_HEARTBEAT,
    AppendReader,
    AppendWriter,
    EntriesEncoder,
    MessageReader,
    encode_message_frame,
)
from tests.etcd import chosen, is_target
from tests.raft.protobuf import protobuf_snapshot
from tests.server.peer.transport.etcds import Member, Stream, running_members, streams
from tests.server.peer.transport.network import Client, Network
from tests.waiting import WAIT_SECONDS_MAX, until

WORD = 8


def spelled_out_entry(entry: Entry) -> bytes:
    made = raftpb.Entry(Type=entry.type, Term=entry.term, Index=entry.index)  # type: ignore[arg-type]
    if entry.data:
        made.Data = entry.data
    return made.SerializeToString()


def is_captured(data: bytes, message: Message) -> bool:
    """Tell whether a captured message is this one, in the form of those that were captured."""
    if is_target():
        return without_zeros(data) == without_zeros(encode_message(message))
    return data == spelled_out(message)


def without_zeros(data: bytes) -> bytes:
    """Leave out numbers that are spelled out although they are 0.

    3.7 does so where it once set a number and took it back, we in entries that are proposed.
    """
    message = raftpb.Message.FromString(data)
    for each in (message, *message.entries):
        for field, value in each.ListFields():
            if value == 0 and field.name != "type":
                each.ClearField(field.name)
    return message.SerializeToString()


def spelled_out(message: Message) -> bytes:
    """A message as members before 3.7 write it."""
    made = raftpb.Message(
        type=message.type,  # type: ignore[arg-type]
        to=message.to,
        term=message.term,
        logTerm=message.log_term,
        index=message.index,
        commit=message.commit,
        reject=message.reject,
        rejectHint=message.reject_hint,
    )
    setattr(made, "from", message.sender)
    made.snapshot.CopyFrom(protobuf_snapshot(message.snapshot or Snapshot(0, 0)))
    for entry in message.entries:
        made.entries.add().ParseFromString(spelled_out_entry(entry))
    if message.context:
        made.context = message.context
    return made.SerializeToString()


def word(number: int) -> bytes:
    return number.to_bytes(WORD, "big")


def status_of(member: Member) -> dict[str, Any]:
    return member.etcd.ask("maintenance/status")


def the_leader(members: list[Member]) -> int:
    """Wait until all members know the same leader; return its id."""

    def found() -> int:
        leaders = {int(status_of(member).get("leader", 0)) for member in members}
        return leaders.pop() if len(leaders) == 1 else 0

    return until("all know the same leader", found)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Member, list[Stream]]]:
    """What three members said on their streams: writes, reads and two changes of the leader."""
    directory = tmp_path_factory.mktemp("etcd")
    # So patient that a busy machine makes nobody campaign.
    with running_members(
        directory, 3, "--heartbeat-interval=20", "--election-timeout=5000"
    ) as members:
        ids = [int(status_of(member)["header"]["member_id"]) for member in members]
        for turn in range(2):
            leader = ids.index(the_leader(members))
            for number in range(40):
                member = members[number % 3]
                member.etcd.put(b"key%d" % number, b"v" + b"alue" * number * turn)
                member.etcd.get(b"key%d" % number)
            # A transfer is asked of the leader.
            members[leader].etcd.ask(
                "maintenance/transfer-leadership", targetID=str(ids[(leader + 1) % 3])
            )
        the_leader(members)
        members[1].etcd.put(b"last", b"one")
    return [(member, streams(member.tap)) for member in members]


def append_frames(stream: bytes) -> list[bytes]:
    """The frames of an append stream, by nothing but their lengths."""
    frames, start = [], 0
    while start < len(stream):
        end = start + 1
        if stream[start] == 1:
            count = int.from_bytes(stream[end : end + WORD], "big")
            end += WORD
            for _ in range(count):
                end += WORD + int.from_bytes(stream[end : end + WORD], "big")
            end += WORD
        elif stream[start] == 2:
            end += WORD + int.from_bytes(stream[end : end + WORD], "big")
        if end > len(stream):
            break
        frames.append(stream[start:end])
        start = end
    return frames


def test_captured_append_streams_are_read_and_written_again(
    captured: list[tuple[Member, list[Stream]]],
) -> None:
    forms: Counter[str] = Counter()
    for _, taken in captured:
        for stream in taken:
            if not stream.target.startswith("/raft/stream/msgapp/"):
                continue
            receiver = int(stream.headers["x-server-from"], 16)
            sender = int(stream.headers["x-raft-to"], 16)
            reader = AppendReader(sender, receiver)
            writer = AppendWriter(EntriesEncoder())
            for frame in append_frames(stream.body):
                read = reader.feed(frame)
                if frame[0] == 0:
                    assert (frame, read) == (APPEND_HEARTBEAT, [])
                    forms["heartbeat"] += 1
                    continue
                (message,) = read
                assert (message.sender, message.to) == (sender, receiver)
                written = writer.encode(message)
                assert written[0] == frame[0]
                if frame[0] == 2:
                    assert frame[1:9] == word(len(frame) - 9) and is_captured(frame[9:], message)
                    assert decode_message(written[9:]) == decode_message(frame[9:]) == message
                    forms["whole"] += 1
                    continue
                forms["continued" if message.entries else "empty"] += 1
                if is_target():
                    assert written == frame
                    continue
                entries = [spelled_out_entry(entry) for entry in message.entries]
                body = b"".join(word(len(entry)) + entry for entry in entries)
                assert frame == b"\x01" + word(len(entries)) + body + word(message.commit)
                # Ours without the type of normal entries: the only difference.
                for entry in message.entries:
                    if entry.type == 0:
                        long, short = spelled_out_entry(entry), spelled_out_entry(entry)[2:]
                        frame = frame.replace(word(len(long)) + long, word(len(short)) + short)
                assert written == frame
    assert forms["continued"] >= 80 and forms["whole"] >= 4 and forms["empty"] > 0, forms


def test_captured_message_streams_are_read_and_written_again(
    captured: list[tuple[Member, list[Stream]]],
) -> None:
    kinds: Counter[int] = Counter()
    for _, taken in captured:
        for stream in taken:
            if not stream.target.startswith("/raft/stream/message/"):
                continue
            reader, start = MessageReader(), 0
            while start + WORD <= len(stream.body):
                end = start + WORD + int.from_bytes(stream.body[start : start + WORD], "big")
                frame, start = stream.body[start:end], end
                if end > len(stream.body):
                    break
                read = reader.feed(frame)
                if not read:
                    assert is_captured(frame[WORD:], Message(MessageType.HEARTBEAT))
                    continue
                (message,) = read
                assert is_captured(frame[WORD:], message)
                assert MessageReader().feed(encode_message_frame(message)) == [message]
                kinds[message.type] += 1
    # Votes of the first election may have been posted, before there were streams.
    expected = {
        MessageType.PROP,
        MessageType.APP_RESP,
        MessageType.HEARTBEAT,
        MessageType.HEARTBEAT_RESP,
        MessageType.READ_INDEX,
        MessageType.READ_INDEX_RESP,
        MessageType.TIMEOUT_NOW,
        MessageType.VOTE,
        MessageType.VOTE_RESP,
    }
    assert expected <= set(kinds), kinds


def test_captured_requests_and_answers_have_the_headers_we_send(
    captured: list[tuple[Member, list[Stream]]],
) -> None:
    network = Network()
    one, _ = network.group(1, 2)
    network.run(1)
    ours = next(headers for sender, _, _, _, headers in network.opened if sender == one.id)
    ignored = {"host", "user-agent", "accept-encoding"}
    for _, taken in captured:
        for stream in taken:
            assert set(stream.headers) - ignored == set(ours)
            assert {"x-server-version", "x-etcd-cluster-id"} <= set(stream.answer_headers)


HEADERS = {
    "X-Server-From": "9",
    "X-Server-Version": "3.7.3",
    "X-Min-Cluster-Version": "3.0.0",
    "X-Raft-To": "@local",
    "X-Etcd-Cluster-ID": "@cluster",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in HEADERS.items() if name not in names}


REQUESTS: list[tuple[str, str, dict[str, str], bytes]] = [
    ("GET", "/raft/stream/message/9", HEADERS, b""),
    ("GET", "/raft/stream/msgapp/9", HEADERS, b""),
    ("GET", "/raft/stream/message/9", without("X-Raft-To"), b""),
    ("GET", "/raft/stream/message/9", without("X-Server-Version"), b""),
    ("GET", "/raft/stream/message/9", without("X-Min-Cluster-Version"), b""),
    ("GET", "/raft/stream/message/9", without("X-Etcd-Cluster-ID"), b""),
    ("GET", "/raft/stream/message/9", HEADERS | {"X-Etcd-Cluster-ID": "7"}, b""),
    ("GET", "/raft/stream/message/9", HEADERS | {"X-Server-Version": "2.3.8"}, b""),
    ("GET", "/raft/stream/message/9", HEADERS | {"X-Min-Cluster-Version": "9.0.0"}, b""),
    ("GET", "/raft/stream/message/9", HEADERS | {"X-Server-Version": "3.9.0"}, b""),
    ("GET", "/raft/stream/nonsense/9", HEADERS, b""),
    ("GET", "/raft/stream/message/xyz", HEADERS, b""),
    ("GET", "/raft/stream/message/11112222333344445", HEADERS, b""),
    ("POST", "/raft/stream/message/9", HEADERS, b""),
    ("GET", "/raft", HEADERS, b""),
    ("PUT", "/raft", HEADERS, b"x"),
    ("POST", "/raft", HEADERS, b"\xff\xff"),
    ("POST", "/raft", without("X-Etcd-Cluster-ID"), b""),
    ("POST", "/raft", without("X-Server-Version"), b""),
    ("POST", "/raft", HEADERS, b"@message"),
    ("GET", "/raft/snapshot", HEADERS, b""),
    ("POST", "/raft/snapshot", without("X-Etcd-Cluster-ID"), b""),
    ("POST", "/raft/snapshot", HEADERS, word(2) + b"\x08\x08"),
    ("GET", "/raft/elsewhere", HEADERS, b""),
    ("POST", "/raft/probing", {}, b""),
]


def test_the_same_requests_are_answered_the_same(tmp_path: Path) -> None:
    """Status, body, and the headers that peers look at."""
    network = Network()
    one = network.add(1, version=str(chosen()))
    client = Client(network)
    with running_members(tmp_path, 1) as (member,):
        header = member.etcd.ask("maintenance/status")["header"]
        local, cluster = f"{int(header['member_id']):x}", f"{int(header['cluster_id']):x}"
        for method, target, headers, body in REQUESTS:

            def filled(to: str, group: str, given: dict[str, str] = headers) -> dict[str, str]:
                known = {"@local": to, "@cluster": group}
                return {name: known.get(value, value) for name, value in given.items()}

            def message(to: str, given: bytes = body) -> bytes:
                known = Message(MessageType.HEARTBEAT_RESP, int(to, 16), 9)
                return encode_message_frame(known)[8:] if given == b"@message" else given

            connection = http.client.HTTPConnection(
                "127.0.0.1", member.peer_port, timeout=WAIT_SECONDS_MAX
            )
            connection.request(method, target, message(local), filled(local, cluster))
            theirs = connection.getresponse()
            their_body = theirs.read()
            connection.close()

            asked = filled("1", "cdf818194e3a8c32")
            lower = [(name.lower(), value) for name, value in asked.items()]
            number = client.request(one, method, target, lower, message("1")).number
            network.run(1)
            case = (method, target, headers)
            if target == "/raft/probing":
                assert set(json.loads(their_body)) == set(json.loads(client.bodies[number])), case
                continue
            assert client.statuses[number] == theirs.status, case
            assert client.bodies[number] == their_body, case
            for name in ("X-Server-Version", "Content-Type", "X-Content-Type-Options", "Allow"):
                assert client.headers[number].get(name.lower()) == theirs.headers.get(name), case
            has_cluster = "x-etcd-cluster-id" in client.headers[number]
            assert has_cluster == ("X-Etcd-Cluster-Id" in theirs.headers), case
