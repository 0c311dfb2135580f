"""Bodies of requests as hypothesis makes them, from the descriptors: for every route, good and not.

There are few keys, leases, users and roles, so that requests affect each other. Two kinds of
requests are never made: those that would make a server choose something itself, which then
differs, and those that would end an etcd, its quorum, or a lease while a test runs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from kvorum.api.descriptors import Method, methods, option
from kvorum.api.pb import etcdserverpb as pb
from tests.server.http import texts
from tests.server.rpc.calls import ENDS, KEYS, OWN_ID

DEPTH_MAX = 3
INTEGERS = {
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_UINT32,
}


class Route(NamedTuple):
    """A path, and the RPC behind it."""

    path: str
    method: Method

    @property
    def request(self) -> Descriptor:
        return self.method.descriptor.input_type

    def __repr__(self) -> str:
        return self.path


def _routes() -> list[Route]:
    found = []
    for method in methods():
        rule = option(method.descriptor, "google.api.http")
        found += [Route(each.post, method) for each in (rule, *rule.additional_bindings)]
    return [route for route in found if route.path]


ROUTES = _routes()
UNARY = [route for route in ROUTES if not route.method.server_streaming]
BY_PATH = {route.path: route for route in ROUTES}

VALUES = [b"", b"1", b"2", b"33", b"\xfb\xff"]
NAMES = ["", "alice", "bob", "r"]
"""Users and roles. Nobody is called root, without whom authentication cannot be enabled."""

GOOD: dict[str, Sequence[Any]] = {
    "key": KEYS,
    "range_end": ENDS,
    "value": VALUES,
    "lease": [0, 0, 7, 8, 99],
    "ID": [7, 8, -3, 99],
    "TTL": [100, 3000, 9_000_000_000, 9_000_000_001],
    "limit": [0, 0, 1, 2, -1],
    "revision": [0, 0, 1, 2, 3, 5, 8, 13, 1000, -1],
    "start_revision": [0, 0, 1, 2, 1000],
    "version": ["", "x", "3", "4.0", "3.1.2", "3.5.0.1"],
    "memberID": [0, 5, OWN_ID],
    "targetID": [0, 5, OWN_ID],
    "peerURLs": ["x", "", "http://127.0.0.1", "ftp://a:1", "http://a:1/b"],
    "rev": [1, 5],
}
"""What stands in fields of these names."""
OWN: dict[str, dict[str, Sequence[Any]]] = {
    "Compare": {"version": [0, 1, 2], "lease": [0, 7]},
    "MemberRemoveRequest": {"ID": [0, 5, OWN_ID]},
    "MemberUpdateRequest": {"ID": [0, 5, 7]},
    "MemberPromoteRequest": {"ID": [0, 5, OWN_ID]},
    "CampaignRequest": {"name": [b"e"]},
    "LeaderRequest": {"name": [b"e", b"none"]},
    "LockRequest": {"name": [b"q", b""]},
    "UnlockRequest": {"key": [b"q/7", b"/7", b""]},
    "LeaderKey": {"name": [b"e", b""], "key": [b"e/7", b"e/8", b""]},
}
"""What stands in fields of these messages, where that is different."""
GUARDED: dict[str, dict[str, Sequence[Any]]] = {
    "LeaseGrantRequest": {"ID": [7, 8, -3], "TTL": GOOD["TTL"]},
    "LockRequest": {"lease": [7, 99]},
    "CampaignRequest": {"lease": [7, 99]},
    "LeaderKey": {"lease": [7, 8, 99]},
    "CompactionRequest": {"physical": [True], "revision": [1, 2, 3, 5, 8, 13, 1000, -1]},
    "AlarmRequest": {"action": ["GET", "ACTIVATE", "DEACTIVATE"]},
    "MemberAddRequest": {"peerURLs": GOOD["peerURLs"]},
    "MemberUpdateRequest": {"ID": OWN["MemberUpdateRequest"]["ID"]},
}
"""Fields that have one of these values, or one that is refused, whatever else is odd."""


def is_guarded(descriptor: Descriptor) -> bool:
    """Return whether a message, or one in it, has guarded fields: then its text is not damaged."""
    inner = [each.message_type for each in descriptor.fields if each.message_type is not None]
    return descriptor.name in GUARDED or any(
        is_guarded(each) for each in inner if each not in RECURSIVE
    )


RECURSIVE = [pb.TxnRequest.DESCRIPTOR]


class Writer:
    """Writes one message, with as many oddities as it may."""

    def __init__(self, draw: st.DrawFn, oddities: int) -> None:
        self._draw = draw
        self._left = oddities

    def _one(self, choices: Sequence[str]) -> str:
        return self._draw(st.sampled_from(choices))

    def _is_odd(self) -> bool:
        """Decide whether an oddity goes here."""
        if not self._left or self._draw(st.integers(0, 3)):
            return False
        self._left -= 1
        return True

    def message(self, descriptor: Descriptor, depth: int = DEPTH_MAX) -> str:
        guarded = GUARDED.get(descriptor.name, {})
        members = []
        for field in self._fields(descriptor, depth):
            if field.name in guarded:
                members.append((self._name(field), self._guarded(field, guarded[field.name])))
            else:
                members.append((self._name(field), self._field(field, depth)))
        if self._is_odd():
            members = self._spoiled(descriptor, members, depth)
        blank = self._one(texts.BLANKS)
        if self._is_odd():
            blank = self._one(texts.BAD_BLANKS)
        members = self._draw(st.permutations(members))
        colon = self._one([":", ":", f"{blank}:{blank}"])
        return "{" + f",{blank}".join(f"{name}{colon}{value}" for name, value in members) + "}"

    def _fields(self, descriptor: Descriptor, depth: int) -> list[FieldDescriptor]:
        """Choose fields: at most one of a oneof, and less and less of what is nested."""
        guarded = GUARDED.get(descriptor.name, {})
        found: list[FieldDescriptor] = []
        for oneof in descriptor.oneofs:
            members = [each for each in oneof.fields if depth > 1 or each.name != "request_txn"]
            if self._draw(st.integers(0, 9)):
                found.append(self._draw(st.sampled_from(members)))
        for field in descriptor.fields:
            if field.containing_oneof is not None:
                continue
            is_wanted = field.name in guarded or self._draw(st.integers(0, 2)) < 2
            if is_wanted and (field.message_type is None or depth > 0):
                found.append(field)
        return found

    def _name(self, field: FieldDescriptor) -> str:
        escaped = f"\\u{ord(field.name[0]):04x}{field.name[1:]}"
        return f'"{self._one([field.name, field.name, field.json_name, escaped])}"'

    def _spoiled(
        self, descriptor: Descriptor, members: list[tuple[str, str]], depth: int
    ) -> list[tuple[str, str]]:
        """Add something that is unknown, twice there, or not meant to be there together."""
        kind = self._one(["unknown", "unknown", "bad", "name", "double", "other", "null"])
        if kind == "unknown":
            return [*members, (self._one(texts.UNKNOWN_NAMES), self._one(texts.UNKNOWN_VALUES))]
        if kind == "bad":
            return [*members, (self._one(texts.UNKNOWN_NAMES), self._one(texts.BAD_UNKNOWN_VALUES))]
        if kind == "name":
            return [*members, (self._one(texts.BAD_NAMES), self._one(texts.UNKNOWN_VALUES))]
        fields = list(descriptor.fields)
        if not fields or (depth <= 0 and any(each.message_type for each in fields)):
            return members
        field = self._draw(st.sampled_from(fields))
        if kind == "null" and field.name not in GUARDED.get(descriptor.name, {}):
            return [*members, (self._name(field), "null")]
        if kind == "double" and members:
            return [*members, self._draw(st.sampled_from(members))]
        is_guarded = field.name in GUARDED.get(descriptor.name, {})
        return members if is_guarded else [*members, (self._name(field), self._field(field, depth))]

    # Values.

    def _guarded(self, field: FieldDescriptor, values: Sequence[Any]) -> str:
        if self._is_odd():
            return self._one(bad_texts(field))
        if field.is_repeated:
            items = self._draw(st.lists(st.sampled_from(values), max_size=2))
            return "[" + ",".join(self._one(good_texts(field, each)) for each in items) + "]"
        return self._one(good_texts(field, self._draw(st.sampled_from(values))))

    def _field(self, field: FieldDescriptor, depth: int) -> str:
        if self._is_odd():
            return self._one([*texts.NOTHING, *odd_texts(field), *bad_texts(field)])
        if not field.is_repeated:
            return self._value(field, depth)
        items = [self._value(field, depth) for _ in range(self._draw(st.integers(0, 2)))]
        if self._is_odd():
            items.append(self._one([*texts.NOTHING, *odd_texts(field), *bad_texts(field)]))
        return "[" + ",".join(items) + "]"

    def _value(self, field: FieldDescriptor, depth: int) -> str:
        if field.message_type is not None:
            return self.message(field.message_type, depth - 1)
        return self._one(good_texts(field, self._draw(st.sampled_from(good_values(field)))))


def good_values(field: FieldDescriptor) -> Sequence[Any]:
    """Return what may stand in a field."""
    assert field.containing_type is not None
    own = OWN.get(field.containing_type.name, {}).get(field.name)
    if own is not None:
        return own
    if field.enum_type is not None:
        return [each.name for each in field.enum_type.values]
    if field.type == FieldDescriptor.TYPE_BOOL:
        return [False, True]
    if field.name in GOOD:
        return GOOD[field.name]
    if field.type == FieldDescriptor.TYPE_STRING:
        return NAMES
    return KEYS if field.type == FieldDescriptor.TYPE_BYTES else GOOD["revision"]


def good_texts(field: FieldDescriptor, value: Any) -> Sequence[str]:
    """Return ways to write a value of a field."""
    if field.enum_type is not None:
        number = field.enum_type.values_by_name[value].number
        return [f'"{value}"', f'"{value}"', f"{number}", f"{number}.0"]
    if isinstance(value, bool):
        return ["true"] if value else ["false"]
    if isinstance(value, int):
        return texts.numbers(value)
    return texts.encoded(value) if isinstance(value, bytes) else texts.strings(value)


def odd_texts(field: FieldDescriptor) -> Sequence[str]:
    """Return texts that are odd in a field, and may stand for values of their own."""
    if field.enum_type is not None:
        return texts.ODD_ENUMS
    if field.type in INTEGERS:
        return texts.EXTREME_NUMBERS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return texts.ODD_BYTES
    return texts.ODD_STRINGS if field.type == FieldDescriptor.TYPE_STRING else texts.NOTHING


def bad_texts(field: FieldDescriptor) -> Sequence[str]:
    """Return texts that are refused in a field, or leave it unset."""
    if field.is_repeated:
        return texts.BAD_LISTS
    if field.message_type is not None:
        return texts.BAD_OBJECTS
    if field.enum_type is not None:
        return texts.BAD_ENUMS + texts.UNKNOWN_ENUMS
    if field.type in INTEGERS:
        return texts.BAD_NUMBERS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return texts.BAD_BYTES
    return texts.BAD_STRINGS if field.type == FieldDescriptor.TYPE_STRING else texts.BAD_BOOLEANS


@st.composite
def values(draw: st.DrawFn, descriptor: Descriptor) -> bytes:
    """Make a JSON value for a message."""
    oddities = draw(st.sampled_from([0, 0, 1, 1, 2]))
    return Writer(draw, oddities).message(descriptor).encode("utf-8", "surrogatepass")


TAILS = [b"", b" \n", b"{}", b" x", b"\0", b"\xff", b"]", b'{"key":', b",", b"\n{}\n{}"]
WHOLES = [
    b"",
    b" \r\n\t",
    b"null",
    b"[]",
    b"[{}]",
    b'""',
    b'"x"',
    b"7",
    b"true",
    b"nul",
    b"{",
    b"}",
    b"{}",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\0}\0",
    b"\0",
    b"\x1f\x8b\x08\0",
    b"key=YQ==",
    b"-",
    b"1e",
    b"{}{}",
    b'{"key"',
    b'{"a":"\xff"}',
    b'{"\xff":1}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\xc0\x80"}',
    b'{"key":"\xff"}',
    b"{\xc2\xa0}",
]
BYTES = [b"\0", b"\x01", b"\x1f", b"\x7f", b"\x80", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\\"]
BYTES += [b'"', b"{", b"}", b"[", b"]", b",", b":", b"-", b"0", b"e", b".", b" ", b"\n", b"n", b"/"]


@st.composite
def bodies(draw: st.DrawFn, route: Route) -> bytes:
    """Make a body: mostly one value, which may be damaged if its route bears that."""
    kind = draw(st.sampled_from(["plain", "plain", "plain", "plain", "tail", "whole", "damage"]))
    if kind == "whole" and not is_guarded(route.request):
        return draw(st.sampled_from(WHOLES))
    body = draw(values(route.request))
    if kind == "tail":
        return draw(st.sampled_from(texts.BLANKS)).encode() + body + draw(st.sampled_from(TAILS))
    if kind != "damage" or is_guarded(route.request):
        return body
    place = draw(st.integers(0, len(body)))
    if draw(st.booleans()):
        return body[:place]
    return body[:place] + draw(st.sampled_from(BYTES)) + body[place + draw(st.integers(0, 2)) :]


class Asked(NamedTuple):
    """One request of a sequence."""

    route: Route
    body: bytes


@st.composite
def requests(draw: st.DrawFn, routes: Sequence[Route]) -> Asked:
    route = draw(st.sampled_from(routes))
    return Asked(route, draw(bodies(route)))
