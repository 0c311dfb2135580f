"""Answers as JSON: byte for byte what protobuf's own JSON says, compactly; and what etcd writes."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import codec
from kvorum.api.pb import etcdserverpb
from kvorum.api.pb.etcdserverpb import RangeResponse, ResponseHeader
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.server.http.decoding import JsonDecoder
from kvorum.server.http.encoding import Encoder, error_body, error_line
from kvorum.server.http.routes import ROUTES
from tests.etcd import is_target, running_etcd
from tests.server.http.asking import Connection
from tests.server.http.messages import TYPES, any_messages, canonical, full_messages, messages

ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def expected(message: Message) -> str:
    return compact(MessageToDict(message, preserving_proto_field_name=True))


def escaped(text: str) -> str:
    return "".join(ESCAPED.get(character, character) for character in text)


encoder = functools.cache(Encoder)
decoder = functools.cache(JsonDecoder)


def check(message: Message) -> None:
    descriptor = message.DESCRIPTOR
    text = encoder(descriptor).encode(canonical(message))
    assert text.decode() == expected(message)
    assert decoder(descriptor).decode(text) == canonical(message)
    line = encoder(descriptor).encode_line(canonical(message))
    assert line.decode() == f'{{"result":{escaped(expected(message))}}}\n'
    assert decoder(descriptor).decode(line.removeprefix(b'{"result":')) == canonical(message)


@pytest.mark.parametrize("descriptor", TYPES, ids=lambda each: each.name)
def test_every_field_of_every_message(descriptor: Descriptor) -> None:
    for message in full_messages(descriptor):
        check(message)


@given(any_messages)
def test_any_message(message: Message) -> None:
    check(message)


@given(st.sampled_from(TYPES), st.data())
@settings(max_examples=50)
def test_fields_in_any_order_and_unknown_ones(descriptor: Descriptor, data: st.DataObject) -> None:
    one, other = (data.draw(messages(descriptor)) for _ in range(2))
    unknown = data.draw(st.sampled_from([b"", b"\xa0\x06\x01", b"\xfa\x7f\x02ab"]))
    text = canonical(other) + unknown + canonical(one)
    both = GetMessageClass(descriptor).FromString(text)
    both.DiscardUnknownFields()
    assert encoder(descriptor).encode(text).decode() == expected(both)


@given(any_messages, st.data())
def test_cut_or_changed_bytes(message: Message, data: st.DataObject) -> None:
    text = canonical(message)
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + data.draw(st.binary(max_size=1))
    try:
        parsed = type(message).FromString(text)
    except DecodeError:
        with pytest.raises(DecodeError):
            encoder(message.DESCRIPTOR).encode(text)
    else:
        parsed.DiscardUnknownFields()
        assert encoder(message.DESCRIPTOR).encode(text).decode() == expected(parsed)


@pytest.mark.parametrize(
    ("message", "tag"), [(etcdserverpb.AlarmRequest, b"\x18"), (etcdserverpb.HashResponse, b"\x10")]
)
@pytest.mark.parametrize("number", [1 << 31, 1 << 32, (1 << 33) + 5])
def test_numbers_beyond_32_bits_are_cut_off_as_protobuf_does(
    message: type[Message], tag: bytes, number: int
) -> None:
    text = tag + codec.varint(number)
    parsed = message.FromString(text)
    assert encoder(message.DESCRIPTOR).encode(text).decode() == expected(parsed)


@pytest.mark.parametrize("depth", [1, 50, 3000])
def test_deep_answers(depth: int) -> None:
    """Transactions in transactions, deeper than protobuf reads and a stack would bear."""
    tags = [
        codec.varint(field.number << 3 | 2)
        for field in (
            etcdserverpb.ResponseOp.DESCRIPTOR.fields_by_name["response_txn"],
            etcdserverpb.TxnResponse.DESCRIPTOR.fields_by_name["responses"],
        )
    ]
    message = b""
    for tag in tags * depth:
        message = codec.length_delimited(tag, message)
    text = encoder(etcdserverpb.TxnResponse.DESCRIPTOR).encode(message)
    assert text.decode() == '{"responses":[{"response_txn":' * depth + "{}" + "}]}" * depth


@given(st.integers(0, 16), st.text(max_size=20))
def test_errors(code: int, message: str) -> None:
    fields = {"code": code, "message": message}
    text = compact({name: value for name, value in fields.items() if value})
    assert error_body(code, message).decode() == text
    assert error_line(code, message).decode() == f'{{"error":{escaped(text)}}}\n'


def test_an_error_that_is_no_text_is_told_all_the_same() -> None:
    assert error_body(2, "a\udcffb") == b'{"code":2,"message":"a?b"}'
    assert error_line(2, "a\udcffb") == b'{"error":{"code":2,"message":"a?b"}}\n'


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A real etcd, and a connection to it."""
    if not is_target():
        pytest.skip("etcd 3.5.1 writes JSON by other rules")
    with (
        running_etcd(tmp_path_factory.mktemp("etcd")) as etcd,
        Connection(etcd.address) as connection,
    ):
        yield connection


CALLS = [
    ("kv/put", "PutResponse", '{"key":"YQ==","value":"/+8="}'),
    ("kv/put", "PutResponse", '{"key":"YQ==","prev_kv":true}'),
    ("kv/range", "RangeResponse", '{"key":"AA==","range_end":"AA=="}'),
    ("kv/range", "RangeResponse", '{"key":"AA==","range_end":"AA==","limit":1}'),
    ("kv/range", "RangeResponse", '{"key":"bm9uZQ=="}'),
    (
        "kv/txn",
        "TxnResponse",
        '{"compare":[{"key":"YQ=="}],"failure":[{"request_put":{"key":"Yg=="}},'
        '{"request_range":{"key":"YQ=="}},{"request_delete_range":{"key":"eA=="}},'
        '{"request_txn":{"success":[{"request_range":{"key":"eA=="}}]}}]}',
    ),
    (
        "kv/txn",
        "TxnResponse",
        '{"success":[{"request_delete_range":{"key":"Yg==","prev_kv":true}}]}',
    ),
    ("kv/deleterange", "DeleteRangeResponse", '{"key":"Yg==","prev_kv":true}'),
    ("lease/grant", "LeaseGrantResponse", '{"ID":7,"TTL":100}'),
    ("lease/timetolive", "LeaseTimeToLiveResponse", '{"ID":-9}'),
    ("lease/leases", "LeaseLeasesResponse", ""),
    ("maintenance/alarm", "AlarmResponse", '{"action":"ACTIVATE","memberID":5,"alarm":"NOSPACE"}'),
    ("maintenance/alarm", "AlarmResponse", '{"action":"DEACTIVATE","memberID":5,"alarm":1}'),
    ("maintenance/status", "StatusResponse", ""),
    ("maintenance/hashkv", "HashKVResponse", ""),
    ("maintenance/snapshot", "SnapshotResponse", ""),
    ("cluster/member/list", "MemberListResponse", ""),
    ("auth/status", "AuthStatusResponse", ""),
    (
        "auth/user/add",
        "AuthUserAddResponse",
        '{"name":"\\u2028<&>","options":{"no_password":true}}',
    ),
    ("auth/user/list", "AuthUserListResponse", ""),
]


@pytest.mark.parametrize(("method", "name", "body"), CALLS)
def test_an_answer_of_etcd(etcd: Connection, method: str, name: str, body: str) -> None:
    """It says what it says, so the message in it is known; and ours says it in the same words."""
    descriptor = getattr(etcdserverpb, name).DESCRIPTOR
    answer = etcd.ask(f"/v3/{method}", body)
    assert answer.status == 200, answer.body
    for text in answer.body.splitlines(keepends=True):
        is_line = text.endswith(b"\n")
        theirs = text.removeprefix(b'{"result":') if is_line else text
        message = decoder(descriptor).decode(theirs)
        if is_line:
            assert encoder(descriptor).encode_line(message) == text
        else:
            # It puts a blank after each comma, or not, build by build.
            assert encoder(descriptor).encode(message).decode() == compact(json.loads(text))


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("kv/range", "{}"),
        ("kv/range", '{"key":"<&>\\u2028"}'),
        ("maintenance/nothing", ""),
        ("auth/authenticate", '{"name":"<&>"}'),
        ("lease/revoke", '{"ID":9}'),
    ],
)
def test_an_error_of_etcd(etcd: Connection, target: str, body: str) -> None:
    text = etcd.ask(f"/v3/{target}", body).body.decode()
    error = json.loads(text)
    assert error_body(error["code"], error["message"]).decode() == compact(error)
    # Also without a parser in between, but for the blanks.
    assert json.dumps(error["message"], ensure_ascii=False) in text


def test_an_error_in_a_line_of_etcd(etcd: Connection) -> None:
    # On a busy machine the time may pass before the stream begins, which is no error in a line.
    for milliseconds in (1, 10, 100, 1000):
        answer = etcd.ask(
            "/v3/election/observe", '{"name":"YQ=="}', {"Grpc-Timeout": f"{milliseconds}m"}
        )
        if "error" in answer.json:
            break
    error = answer.json["error"]
    assert error_line(error["code"], error["message"]) == answer.body


KEY_VALUES = st.lists(
    st.builds(
        KeyValue,
        key=st.binary(max_size=40),
        create_revision=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300),
        mod_revision=st.integers(0, 2**40),
        version=st.integers(0, 300),
        value=st.binary(max_size=90),
        lease=st.just(0) | st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=60,
)


@given(KEY_VALUES, st.integers(0, 1))
def test_keys_of_a_long_answer_are_written_as_those_of_short_ones(
    found: list[KeyValue], count: int
) -> None:
    """Whatever writes a long answer, a short one is written by Python."""
    encoder = ROUTES["/v3/kv/range"].encoder
    header = ResponseHeader(revision=7)
    whole = encoder.encode(RangeResponse(header=header, kvs=found, count=count).SerializeToString())
    texts = [encoder.encode(RangeResponse(kvs=[each]).SerializeToString()) for each in found]
    inner = b",".join(text.removeprefix(b'{"kvs":[').removesuffix(b"]}") for text in texts)
    kvs = b',"kvs":[' + inner + b"]" if found else b""
    assert whole == b'{"header":{"revision":"7"}' + kvs + (b',"count":"1"}' if count else b"}")
