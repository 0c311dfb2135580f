"""Requests in JSON become the bytes that protobuf's own JSON makes of them, or are refused."""

import base64
import functools
import json
import random
import re
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb
from kvorum.server.http.decoding import JsonDecoder, Malformed
from tests.server.http.messages import (
    any_messages,
    base64_texts,
    canonical,
    edited,
    in_json,
    nested_transactions,
    number_texts,
    texts,
    values,
)

decoder = functools.cache(JsonDecoder)


def decode(message: type[Message], text: str | bytes) -> bytes:
    return decoder(message.DESCRIPTOR).decode(text if isinstance(text, bytes) else text.encode())


def decode_slices(message: type[Message], text: bytes, bytes_max: int) -> bytes:
    """Decode as `decode` does, so many bytes at a time."""
    reading = decoder(message.DESCRIPTOR).begin(text)
    while not reading.advance(bytes_max):
        pass
    return reading.message


def is_refused(message: type[Message], text: str | bytes) -> bool:
    try:
        decode(message, text)
    except Malformed as error:
        # The reading alone has no words for errors of syntax: whoever is refused is told why.
        if not str(error):
            raise AssertionError(text) from error
        return True
    return False


def shuffled(value: Any, order: random.Random, unknown: Any) -> Any:
    """Return a value with the members of its objects in another order, among strangers."""
    if isinstance(value, list):
        return [shuffled(each, order, unknown) for each in value]
    if not isinstance(value, dict):
        return value
    members = [(name, shuffled(each, order, unknown)) for name, each in value.items()]
    members += [("stranger", unknown), ("", unknown)]
    order.shuffle(members)
    return dict(members)


@given(any_messages, values, st.randoms(use_true_random=False), st.data())
def test_any_message(
    message: Message, unknown: Any, order: random.Random, data: st.DataObject
) -> None:
    keeps_names = data.draw(st.booleans())
    has_numbers = data.draw(st.booleans())
    fields = MessageToDict(
        message, preserving_proto_field_name=keeps_names, use_integers_for_enums=has_numbers
    )
    text = data.draw(texts(st.just(shuffled(fields, order, unknown))))
    rest = data.draw(st.sampled_from([b"", b"\n", b"}", b"{}", b"\xff", b'"']))
    found = decoder(message.DESCRIPTOR).decode(b" \n" + text.encode() + rest)
    assert found == canonical(message)


@given(any_messages, st.data())
def test_a_broken_text_is_refused_and_nothing_worse(message: Message, data: st.DataObject) -> None:
    body = data.draw(edited(data.draw(in_json(message)).encode()))
    if not is_refused(type(message), body):
        found = decode(type(message), body)
        assert canonical(type(message).FromString(found)) == found


@given(st.binary(max_size=30))
def test_bytes_are_refused_and_nothing_worse(body: bytes) -> None:
    blank = body.strip(b" \t\r\n")
    assert is_refused(etcdserverpb.TxnRequest, body) or blank in (b"", b"{}", b"null")


@pytest.mark.parametrize("body", [b"", b" ", b"\r\n\t "])
def test_no_text_is_an_empty_message(body: bytes) -> None:
    assert decode(etcdserverpb.PutRequest, body) == b""


def test_null_is_no_value_but_a_member() -> None:
    assert decode(etcdserverpb.RangeRequest, '{"key":null,"limit":null,"sortOrder":null}') == b""
    assert decode(etcdserverpb.TxnRequest, '{"compare":null}') == b""
    set_after = '{"success":[{"request_put":null,"request_range":{}}]}'
    message = etcdserverpb.TxnRequest(success=[{"request_range": {}}])
    assert decode(etcdserverpb.TxnRequest, set_after) == canonical(message)
    assert is_refused(etcdserverpb.RangeRequest, '{"key":null,"key":"YQ=="}')
    assert is_refused(etcdserverpb.TxnRequest, '{"compare":[null]}')
    assert is_refused(etcdserverpb.MemberAddRequest, '{"peerURLs":[null]}')


@pytest.mark.parametrize("names", [("range_end", "range_end"), ("range_end", "rangeEnd")])
def test_a_member_comes_once(names: tuple[str, str]) -> None:
    members = ",".join(f'"{name}":"YQ=="' for name in names)
    with pytest.raises(Malformed, match="duplicate field"):
        decode(etcdserverpb.RangeRequest, f"{{{members}}}")


def test_one_of_several() -> None:
    with pytest.raises(Malformed, match=r"etcdserverpb\.Compare\.target_union is already set"):
        decode(etcdserverpb.Compare, '{"version":"0","value":""}')
    assert decode(etcdserverpb.Compare, '{"version":0}') == canonical(
        etcdserverpb.Compare(version=0)
    )


def test_enums() -> None:
    request = etcdserverpb.WatchCreateRequest
    assert decode(request, '{"filters":["NODELETE","none","1",0,7]}') == canonical(
        request(filters=[1, 0, 7])  # type: ignore[list-item]
    )
    assert decode(etcdserverpb.RangeRequest, '{"sort_order":"descend"}') == b""
    for text in ("2147483648", "1.5", "true", "[]"):
        assert is_refused(etcdserverpb.RangeRequest, f'{{"sort_order":{text}}}')


@pytest.mark.parametrize("text", ['"true"', "1", "0", '""', "[]", "{}", "True"])
def test_no_flags(text: str) -> None:
    assert is_refused(etcdserverpb.RangeRequest, f'{{"serializable":{text}}}')


@given(number_texts, st.booleans())
def test_integers(text: str, is_quoted: bool) -> None:
    value = Decimal(text)
    body = f'{{"ID":{json.dumps(text) if is_quoted else text}}}'
    for message, lowest, highest in (
        (etcdserverpb.LeaseRevokeRequest, -(1 << 63), (1 << 63) - 1),
        (etcdserverpb.MemberRemoveRequest, 0, (1 << 64) - 1),
    ):
        if value == value.to_integral_value() and lowest <= value <= highest:
            assert decode(message, body) == canonical(message(ID=int(value)))
        else:
            assert is_refused(message, body)


LONG = 200_000


@pytest.mark.parametrize(
    "text",
    [
        "9" * LONG,
        "1e999999999",
        "1e" + "9" * LONG,
        "1e-" + "9" * LONG,
        "0." + "9" * LONG,
        "9" * LONG + f"e-{LONG - 1}",
    ],
)
def test_long_numbers(text: str) -> None:
    assert is_refused(etcdserverpb.LeaseRevokeRequest, f'{{"ID":{text}}}')
    assert is_refused(etcdserverpb.LeaseRevokeRequest, f'{{"ID":"{text}"}}')


@pytest.mark.parametrize(
    "text",
    ["0." + "0" * LONG, "0e" + "9" * LONG, "5" + "0" * LONG + f"e-{LONG}", "5e" + "0" * LONG],
)
def test_long_texts_of_small_numbers(text: str) -> None:
    number = int(text[0])
    message = etcdserverpb.LeaseRevokeRequest(ID=number)
    assert decode(etcdserverpb.LeaseRevokeRequest, f'{{"ID":{text}}}') == canonical(message)


def expected_bytes(text: str) -> bytes | None:
    """Return what base64 stands for, by the book."""
    content = text.replace("\n", "").replace("\r", "")
    letter = "[A-Za-z0-9_-]" if set(text) & set("-_") else "[A-Za-z0-9+/]"
    two, three = ("==", "=") if len(text) % 4 == 0 else ("", "")
    form = f"({letter}{{4}})*({letter}{{2}}{two}|{letter}{{3}}{three})?"
    if not re.fullmatch(form, content):
        return None
    padding = "=" * (-len(content) % 4)
    return base64.b64decode(content.replace("-", "+").replace("_", "/") + padding)


@given(base64_texts)
def test_bytes(text: str) -> None:
    body = json.dumps({"key": text})
    expected = expected_bytes(text)
    if expected is None:
        assert is_refused(etcdserverpb.PutRequest, body)
    else:
        message = etcdserverpb.PutRequest(key=expected)
        assert decode(etcdserverpb.PutRequest, body) == canonical(message)


CODES = ["\\ud83d", "\\ude00", "\\uD800", "\\udc00", "\\ud7ff"]
ESCAPES = st.lists(st.sampled_from([*CODES, "\\\\", "\\n", "u", "a", "\u00e9"]), max_size=6)
PLACES = ['{"name":"%s"}', '{"%s":1}', '{"x":[{"y":"%s"}]}', '{"x":{"%s":0}}']
SURROGATE = re.compile("[\ud800-\udfff]")


@given(ESCAPES.map("".join), st.sampled_from(PLACES))
def test_half_a_character_is_refused_wherever_it_is(escapes: str, form: str) -> None:
    text = json.loads(f'"{escapes}"')
    is_broken = SURROGATE.search(text) is not None
    assert is_refused(etcdserverpb.AuthUserGetRequest, form % escapes) == is_broken
    if not is_broken:
        message = etcdserverpb.AuthUserGetRequest(name=text if "name" in form else "")
        assert decode(etcdserverpb.AuthUserGetRequest, form % escapes) == canonical(message)


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"\xff"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"\xc0\x80":1}',
        b'{"name":"a\nb"}',
        b'{"a\nb":1}',
        b'{"name":"\x00"}',
        b'{"name":5}',
        b'{"name":["a"]}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_no_texts(body: bytes) -> None:
    assert is_refused(etcdserverpb.AuthUserGetRequest, body)


def test_deep_transactions() -> None:
    # Three levels each, and four for the innermost one.
    text, message = nested_transactions(3332, "failure")
    assert decode(etcdserverpb.TxnRequest, text) == message
    text, _ = nested_transactions(3333, "success")
    with pytest.raises(Malformed, match="exceeded max depth"):
        decode(etcdserverpb.TxnRequest, text)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"key":', "}")])
def test_deep_strangers(opening: str, closing: str) -> None:
    for depth, is_deeper in ((9999, False), (10_000, True), (100_000, True)):
        text = f'{{"x":{opening * depth}1{closing * depth}}}'
        assert is_refused(etcdserverpb.TxnRequest, text) == is_deeper


# Slices.


@given(
    any_messages.flatmap(lambda message: st.tuples(st.just(message), in_json(message))), st.data()
)
def test_slices_make_no_difference(written: tuple[Message, str], data: st.DataObject) -> None:
    message, text = written
    body = data.draw(edited(text.encode()) | st.just(text.encode()))
    bytes_max = data.draw(st.integers(1, 30))
    try:
        expected: bytes | str = decode(type(message), body)
    except Malformed as error:
        expected = str(error)
    try:
        found: bytes | str = decode_slices(type(message), body, bytes_max)
    except Malformed as error:
        found = str(error)
    assert found == expected


@pytest.mark.parametrize(
    ("message", "head", "item", "tail"),
    [
        (etcdserverpb.TxnRequest, '{"compare":[', "{}", "]}"),
        (etcdserverpb.TxnRequest, '{"compare":[', "{}", "}}"),
        (etcdserverpb.TxnRequest, '{"compare":[', "{}", '],"compare":[]}'),
        (etcdserverpb.TxnRequest, '{"success":[', '{"requestPut":{"key":"YQ=="}}', "]}"),
        (etcdserverpb.WatchCreateRequest, '{"filters":[', "0", "]}"),
        (etcdserverpb.WatchCreateRequest, '{"filters":[', '"NOPUT"', "]}"),
        (etcdserverpb.WatchCreateRequest, '{"stranger":[', "{}", "]}"),
        (etcdserverpb.WatchCreateRequest, "{", '"":0', "}"),
        (etcdserverpb.WatchCreateRequest, "[", "[]", "]"),
        (etcdserverpb.MemberAddRequest, '{"peerURLs":[', '""', "]}"),
    ],
)
def test_no_slice_is_longer_than_its_caller_allows(
    message: type[Message], head: str, item: str, tail: str
) -> None:
    """But for one token: whatever a long text consists of, it takes many slices."""
    text = (head + ",".join([item] * 3000) + tail).encode()
    reading = decoder(message.DESCRIPTOR).begin(text)
    slices, is_whole = 0, False
    try:
        while not is_whole:
            before = reading.offset
            is_whole = reading.advance(100)
            # An error begins the text anew, to look for what is told rather.
            assert reading.offset - before < 200 or not before
            slices += 1
    except Malformed:
        pass
    assert text[0:1] == b"[" or slices > len(text) / 200


def test_small_messages_of_a_long_list_take_little_memory() -> None:
    text = b'{"compare":[' + b",".join([b"{}"] * 100_000) + b"]}"
    tracemalloc.start()
    content = decode(etcdserverpb.TxnRequest, text)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert content == b"\x0a\x00" * 100_000
    assert peak_bytes < 6 * len(content)
