"""Attacks on the communication between members: on the peer port, and by false members."""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

from bench.abuse.http_attacks import in_words
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import Wire, exchange, head, request, status_of
from bench.load import call
from kvorum.api.pb.etcdserverpb import MemberAddRequest, MemberListRequest, MemberListResponse
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message

ADD = head(b"/etcdserverpb.Cluster/MemberAdd")
LIST = "/etcdserverpb.Cluster/MemberList"
BRACKETS = b"[" * 200_000
LAST_TERM = 2**64 - 1
ANSWER_SECONDS_MAX = 2.0
ESCAPES = "\u009b31mforged\u2028\u007f".encode()
FORGED = b'{"level":"info","msg":"forged"}'
CONTROLS = frozenset(range(32)) - {0x09} | {0x7F}


def _add(target: Target, url: str, deadline: float) -> str:
    """Add a learner; return the status of the call."""
    body = MemberAddRequest(peerURLs=[url], isLearner=True).SerializeToString()
    with Wire(target.client) as wire:
        return wire.answered(wire.call(ADD, body, deadline), deadline)


def member_not_ascii(target: Target, count: int, deadline: float) -> Seen:
    """Add a learner whose host name is not ASCII, and wait `count` seconds for its dialing."""
    status = _add(target, "http://\u00e9:2380", deadline)
    end = min(deadline, time.monotonic() + count)
    while time.monotonic() < end and target.is_running():
        time.sleep(0.05)
    return Seen(f"MemberAdd: {status}")


@contextlib.contextmanager
def _answering(body: bytes, status: bytes = b"200 OK") -> Iterator[tuple[str, list[bytes]]]:
    """Answer every HTTP request with a body; yield the URL, and the requests as they come."""
    asked: list[bytes] = []
    answer = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nConnection: close\r\n"
    answer += b"Content-Length: %d\r\n\r\n" % len(body) + body

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    connection.settimeout(2.0)
                    asked.append(connection.recv(65_536).partition(b"\r\n")[0])
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def member_of_brackets(target: Target, count: int, deadline: float) -> Seen:
    """Add a learner that answers everything with 200,000 opening brackets."""
    with _answering(BRACKETS) as (url, asked):
        status = _add(target, url, deadline)
        end = min(deadline, time.monotonic() + count)
        wanted = (b"/version", b"/raft/probing")
        while time.monotonic() < end and target.is_running():
            if all(any(each in line for line in asked) for each in wanted):
                time.sleep(target.hold_seconds)
                break
            time.sleep(0.05)
        kinds = Counter(line.split(b" ")[1].decode() for line in asked if b" " in line)
        return Seen(f"MemberAdd: {status}; asked for {in_words(kinds)}")


def log_injection(target: Target, count: int, deadline: float) -> Seen:
    """Send text that servers log, with control characters and a line that imitates the log."""
    before = target.log.stat().st_size
    for address in (target.client, target.metrics, target.peer):
        for each in (b"X-Server-Version: ", b"X-PeerURLs: http://", b"X-Raft-To: "):
            asked = request(b"/raft/stream/message/" + ESCAPES, each + ESCAPES)
            exchange(address, asked, ANSWER_SECONDS_MAX)
        for each in (b"/raft", b"/raft/snapshot", b"/members/promote/" + ESCAPES):
            asked = request(each, b"X-Etcd-Cluster-ID: " + ESCAPES, method=b"POST", body=FORGED)
            exchange(address, asked, ANSWER_SECONDS_MAX)
    with _answering(ESCAPES + b"\n" + FORGED + b"\n", b"500 \xc2\x9b31mforged") as (url, asked_for):
        status = _add(target, url, deadline)
        end = min(deadline, time.monotonic() + count)
        while time.monotonic() < end and target.is_running():
            time.sleep(0.05)
    with target.log.open("rb") as log:
        log.seek(before)
        lines = log.read().split(b"\n")
    forged = any(line.startswith(FORGED[:15]) and line.endswith(FORGED[-9:]) for line in lines)
    raw = sum(
        not CONTROLS.isdisjoint(line) or b"\xc2\x9b" in line or b"\xe2\x80\xa8" in line
        for line in lines
    )
    harm = "FORGED LINE" if forged else f"{raw} RAW LINES" if raw else ""
    return Seen(f"MemberAdd: {status}; {len(asked_for)} questions, {len(lines):,} lines", harm=harm)


def promotion_of_digits(target: Target, count: int, deadline: float) -> Seen:
    """Promote members at the peer port by ids with `count` digits and other invalid ids."""
    seen: Counter[str] = Counter()
    for each in (b"9" * count, b"-1", b"1_0", b"%d" % 2**64, "\u0661".encode(), b" 1", b""):
        asked = request(b"/members/promote/" + each, method=b"POST")
        seen[status_of(exchange(target.peer, asked, deadline - time.monotonic()))] += 1
    return Seen(in_words(seen))


def last_term(target: Target, count: int, deadline: float) -> Seen:
    """Post a heartbeat of the highest possible term in the name of the other member."""
    answer = MemberListResponse.FromString(
        call(target.client, LIST, MemberListRequest().SerializeToString())
    )
    receiver, cluster = answer.header.member_id, answer.header.cluster_id
    sender = next(each.ID for each in answer.members if receiver != each.ID)
    heartbeat = Message(MessageType.HEARTBEAT, receiver, sender, LAST_TERM)
    asked = request(
        b"/raft",
        b"X-Server-From: %x" % sender,
        b"X-Raft-To: %x" % receiver,
        b"X-Etcd-Cluster-ID: %x" % cluster,
        b"X-Server-Version: 3.5.0",
        b"X-Min-Cluster-Version: 3.0.0",
        b"Content-Type: application/protobuf",
        method=b"POST",
        body=encode_message(heartbeat),
    )
    seen: Counter[str] = Counter()
    for _ in range(count):
        seen[status_of(exchange(target.peer, asked, deadline - time.monotonic()))] += 1
    end = min(deadline, time.monotonic() + target.hold_seconds)
    while time.monotonic() < end and target.is_running():
        time.sleep(0.05)
    return Seen(in_words(seen))


ATTACKS = (
    Attack("member http://\u00e9:2380", member_not_ascii, 6, 1, leaves_marks=True),
    Attack("member that says [[[[", member_of_brackets, 12, 6, leaves_marks=True),
    Attack("log injection", log_injection, 6, 1, leaves_marks=True),
    Attack("promote 5,000 digits", promotion_of_digits, 5_000, 5_000),
    Attack("heartbeat of the last term", last_term, 1, 1, members=2, leaves_marks=True),
)
