"""Bodies and frames that are damaged at random, from a seed: the same each time."""

import base64
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tests.server.http.bodies import GUARDED, ROUTES, Route, good_values
from tests.server.http.websocket import BINARY, CLOSE, MORE, PING, PONG, TEXT, frame

HARMLESS: dict[str, dict[str, Any]] = {
    "AlarmRequest": {"action": "GET"},
    "MemberAddRequest": {"peerURLs": ["x"]},
    "MemberUpdateRequest": {"ID": 5, "peerURLs": ["x"]},
    "DowngradeRequest": {"version": "x"},
}
"""What these say, so that no damage of a few bytes makes it change the cluster."""
DEPTH_MAX = 3
PIECES = [
    b"\0",
    b"\xff",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"1e9",
    b"-",
    b"\n",
]
PIECES += [b'"key":', b"\\ud800", b"\xed\xa0\x80", b"9" * 50, b"[" * 200, b'{"a":' * 50, b"=", b"_"]


def request_of(descriptor: Descriptor, random: Random, depth: int = DEPTH_MAX) -> dict[str, Any]:
    """Return a good request, as JSON would have it."""
    fields = [each for each in descriptor.fields if each.containing_oneof is None]
    chosen = [each for each in fields if random.random() < 0.6]
    chosen += [random.choice(oneof.fields) for oneof in descriptor.oneofs]
    found = {
        random.choice([field.name, field.json_name]): _value(field, random, depth)
        for field in chosen
        if field.message_type is None or depth > 0
    }
    return found | HARMLESS.get(descriptor.name, {})


def _value(field: FieldDescriptor, random: Random, depth: int) -> Any:
    if field.is_repeated:
        return [_single(field, random, depth) for _ in range(random.randrange(3))]
    return _single(field, random, depth)


def _single(field: FieldDescriptor, random: Random, depth: int) -> Any:
    if field.message_type is not None:
        return request_of(field.message_type, random, depth - 1)
    assert field.containing_type is not None
    guarded = GUARDED.get(field.containing_type.name, {})
    value = random.choice(guarded.get(field.name, good_values(field)))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def damaged(data: bytes, random: Random) -> bytes:
    """Return bytes with a few damages, or none."""
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        place = random.randrange(len(data) + 1)
        end = min(len(data), place + random.choice([0, 1, 1, 2, 8]))
        piece = random.choice(
            [b"", random.choice(PIECES), random.randbytes(2), data[place:end] * 2]
        )
        data = data[:place] + piece + data[end:]
    return data


def bodies(seed: int, count: int) -> Iterator[tuple[Route, bytes]]:
    """Return so many requests to routes, each with a body."""
    random = Random(seed)
    for _ in range(count):
        route = random.choice(ROUTES)
        texts = [
            json.dumps(request_of(route.request, random)) for _ in range(random.choice([1, 1, 3]))
        ]
        yield route, damaged("".join(texts).encode(), random)


def frames(route: Route, random: Random) -> bytes:
    """Return some frames of one WebSocket; some are damaged, and some are out of place."""
    sent = b""
    for _ in range(random.randrange(1, 13)):
        body = json.dumps(request_of(route.request, random)).encode()
        if random.random() < 0.2:
            body = damaged(body, random)
        sent += b"".join(_message(body, random))
    return damaged(sent, random) if random.random() < 0.3 else sent


def _message(body: bytes, random: Random) -> Iterator[bytes]:
    """Return the frames of a message: one, or several with others in between."""
    place = random.choice([0, 0, 0, random.randrange(len(body) + 1)])
    opcode = random.choice([TEXT, TEXT, BINARY])
    if place:
        yield frame(opcode, body[:place], is_last=False, mask=random.randbytes(4))
        opcode = MORE
    if random.random() < 0.1:
        other = random.choice([PING, PING, PONG, PONG, CLOSE, TEXT, MORE, random.randrange(16)])
        yield frame(other, random.randbytes(random.choice([0, 2, 125, 126])), mask=b"\0\0\0\0")
    yield frame(opcode, body[place:], mask=random.randbytes(4))
