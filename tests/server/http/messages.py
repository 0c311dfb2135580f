"""Messages of any type of the API, as hypothesis makes them from descriptors; and JSON texts."""

import base64
import json
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from kvorum.api import codec
from kvorum.api.descriptors import methods
from kvorum.api.pb import etcdserverpb

_DESCRIPTORS: dict[str, Descriptor] = {
    descriptor.full_name: descriptor
    for method in methods()
    for descriptor in (method.descriptor.input_type, method.descriptor.output_type)
}
TYPES = [_DESCRIPTORS[name] for name in sorted(_DESCRIPTORS)]
"""Every request and response."""

DEPTH_MAX = 3


def integers(lowest: int, highest: int) -> st.SearchStrategy[int]:
    """Small numbers, numbers at both sides of each length of a varint, and the outermost ones."""
    edges = [1 << shift for shift in range(0, 64, 7)]
    near = [edge + step for edge in edges for step in (-1, 0, 1)] + [lowest, highest, -1]
    return st.one_of(
        st.sampled_from([number for number in near if lowest <= number <= highest]),
        st.integers(lowest, highest),
    )


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=12) | st.integers(120, 140).map(bytes),
    FieldDescriptor.TYPE_STRING: st.text(max_size=12)
    | st.sampled_from(['<>&"\\/\b\f\n\r\t', "\x00\x1f\x7f", "\u2028\u2029", "\U0001f600\ufffd"]),
    FieldDescriptor.TYPE_INT64: integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT64: integers(0, (1 << 64) - 1),
    FieldDescriptor.TYPE_UINT32: integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 5) | integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
}


FULL: dict[int, Any] = {
    FieldDescriptor.TYPE_BYTES: b"\xff\xef",
    FieldDescriptor.TYPE_STRING: "\u00e9<",
    FieldDescriptor.TYPE_INT64: -1,
    FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_ENUM: 1,
    FieldDescriptor.TYPE_BOOL: True,
}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
    """Any message of a type: each field set or not, lists of up to three items."""
    fields: dict[str, Any] = {}
    oneofs = set()
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        oneof = field.containing_oneof
        if oneof is not None and oneof.name in oneofs:
            continue
        if field.message_type is None:
            values = SCALARS[field.type]
        elif depth < DEPTH_MAX:
            values = messages(field.message_type, depth + 1)
        else:
            continue
        if oneof is not None:
            oneofs.add(oneof.name)
        fields[field.name] = draw(st.lists(values, max_size=3) if field.is_repeated else values)
    return GetMessageClass(descriptor)(**fields)


any_messages = st.sampled_from(TYPES).flatmap(messages)


def full_messages(descriptor: Descriptor, depth: int = 0) -> list[Message]:
    """Messages of a type with all fields set, one for each member of a oneof."""
    fields: dict[str, Any] = {}
    members: list[dict[str, Any]] = []
    for field in descriptor.fields:
        if field.message_type is None:
            value = FULL[field.type]
        elif depth < DEPTH_MAX:
            value = full_messages(field.message_type, depth + 1)[0]
        else:
            continue
        if field.containing_oneof is not None:
            members.append({field.name: value})
        else:
            fields[field.name] = [value, value] if field.is_repeated else value
    return [GetMessageClass(descriptor)(**fields, **member) for member in members or [{}]]


def canonical(message: Message) -> bytes:
    """Return a message's bytes as all protobuf libraries write them."""
    return message.SerializeToString(deterministic=True)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
"""What JSON can say."""


@st.composite
def texts(draw: st.DrawFn, of: st.SearchStrategy[Any] = values) -> str:
    """A value as JSON text, spaced and escaped in one of several ways."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), ("\r\n,\t", " : ")]))
    return json.dumps(draw(of), separators=separators, ensure_ascii=draw(st.booleans()))


def in_json(message: Message) -> st.SearchStrategy[str]:
    """A message in JSON."""
    return texts(st.just(MessageToDict(message)))


number_texts = st.builds(
    lambda *parts: "".join(parts),
    st.sampled_from(["", "-"]),
    st.sampled_from(["0", "9223372036854775808"]) | st.integers(0, 10**21).map(str),
    st.sampled_from(["", ".0", ".5", ".25", ".000"]),
    st.sampled_from(["", "e0", "E2", "e+3", "e-2", "e-002"]),
)
"""Numbers, integral or not, around all limits."""
base64_texts = st.one_of(
    st.text(st.sampled_from("AZaz09+/-_=\n\r \u00e9"), max_size=9),
    st.binary(max_size=9).map(lambda content: base64.b64encode(content).decode()),
)
"""Base64, or nearly."""


ALPHABET = [b'"', b"\\", b"\\u", b"d83d", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"-"]
ALPHABET += [
    b"0",
    b"1",
    b".",
    b"e",
    b"+",
    b"true",
    b"false",
    b"null",
    b"NaN",
    b"a",
    b"'",
    b"=",
    b"_",
]
ALPHABET += [b"\x00", b"\x1f", b"\x7f", b"\xff", b"\xc2\xa0", b"\xed\xa0\x80", b"\\n", b"\\x", b"/"]


@st.composite
def edited(draw: st.DrawFn, text: bytes) -> bytes:
    """A text with a few places replaced, removed or filled in, so that most are broken."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(text)))
        removed = draw(st.integers(0, 3))
        text = text[:place] + draw(st.sampled_from([b"", *ALPHABET])) + text[place + removed :]
    return text


def nested_transactions(depth: int, member: str) -> tuple[str, bytes]:
    """Return transactions in each other, with a large value innermost, as text and as bytes."""
    put = etcdserverpb.RequestOp(request_put={"key": b"k" * 100_000})
    message = canonical(etcdserverpb.TxnRequest(success=[put]))
    text = json.dumps(MessageToDict(etcdserverpb.TxnRequest.FromString(message)))
    heads = [
        codec.varint(field.number << 3 | 2)
        for field in (
            etcdserverpb.RequestOp.DESCRIPTOR.fields_by_name["request_txn"],
            etcdserverpb.TxnRequest.DESCRIPTOR.fields_by_name[member],
        )
    ]
    for head in heads * depth:
        message = codec.length_delimited(head, message)
    return f'{{"{member}":[{{"request_txn":' * depth + text + "}]}" * depth, message
