"""Which texts are refused, in which words, and what others stand for: asked of a real etcd."""

import base64
import functools
import json
import re
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.descriptors import POOL
from kvorum.api.pb import etcdserverpb
from kvorum.server.http.decoding import JsonDecoder, Malformed
from tests.etcd import is_target, running_etcd
from tests.server.http.asking import Connection
from tests.server.http.messages import (
    base64_texts,
    canonical,
    edited,
    in_json,
    messages,
    nested_transactions,
    number_texts,
)

decoder = functools.cache(JsonDecoder)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A real etcd, and a connection to it."""
    if not is_target():
        pytest.skip("etcd 3.5.1 reads JSON by other rules")
    with (
        running_etcd(tmp_path_factory.mktemp("etcd")) as etcd,
        Connection(etcd.address) as connection,
    ):
        yield connection


def refusal(etcd: Connection, target: str, body: bytes) -> str:
    """Return what etcd finds wrong with a text; nothing if it is the request, or nothing at all."""
    answer = etcd.ask(f"/v3/{target}", body)
    error = answer.json
    if answer.status != 400 or error["code"] != 3 or error["message"].startswith("etcdserver: "):
        return ""
    # It writes one blank or another, build by build.
    message: str = error["message"].replace("proto:\u00a0", "proto: ")
    return message


ROUTES = {
    "kv/range": "RangeRequest",
    "kv/txn": "TxnRequest",
    "lease/timetolive": "LeaseTimeToLiveRequest",
    "auth/user/get": "AuthUserGetRequest",
}


def request_type(target: str) -> Descriptor:
    return POOL.FindMessageTypeByName(f"etcdserverpb.{ROUTES[target]}")


def decode(target: str, body: bytes) -> bytes:
    return decoder(request_type(target)).decode(body)


def our_refusal(target: str, body: bytes) -> str:
    try:
        decode(target, body)
    except Malformed as error:
        return str(error)
    return ""


# What is wrong with the characters of a string is said in words of our own.
ABOUT_CHARACTERS = re.compile("invalid (string|UTF-8|escape code)|^proto: unexpected EOF")


def compare(etcd: Connection, target: str, body: bytes) -> None:
    theirs, ours = refusal(etcd, target, body), our_refusal(target, body)
    assert bool(ours) == bool(theirs), (body, ours, theirs)
    if not ABOUT_CHARACTERS.search(ours) and not ABOUT_CHARACTERS.search(theirs):
        assert ours == theirs, body


@given(st.sampled_from(sorted(ROUTES)), st.data())
def test_broken_texts_are_those_that_etcd_refuses(
    etcd: Connection, target: str, data: st.DataObject
) -> None:
    message = data.draw(messages(request_type(target)))
    compare(etcd, target, data.draw(edited(data.draw(in_json(message)).encode())))


STRINGS = [
    *("", "1", "-0", "1 ", " 1", "1,", "1 2", "1e,", "0e,", "0e+,", "1e+", "1.", "1.0", "+1", "01"),
    *("0x1", "1\\u00a0", "1\\u0085", "1\\u001c", "1\\u200b", "1\\n", "true", "null"),
    *("ASCEND", "ascend", "\\ud800", "\\ud83d\\ude00", "a\\u0000", "\\x", "\x7f", "\t"),
    *("YQ==", "YQ", "YQ=", "YR==", "Y", "YWJj====", "====", "Y=Q=", "-_-_", "-/+_", "-_8"),
    *("YW\\nJj", "YQ\\n\\n", "YQ==\\n", "YQ=\\n=\\r\\r\\r", "\\n", " YQ==", "Y\\u0051=="),
]
OTHERS = [
    *("1", "1.0", "1e2", "150e-1", "1e-1", "-0", "-0.0", "0.5e1", "1e19", "01", "+1", "1x", "1."),
    *("0e99999999999", "1e999999999", "0.000000000000000000000001e24", "1" * 5000),
    *("9223372036854775807", "9223372036854775808", "2147483647", "2147483648"),
    *("true", "false", "null", "nullx", "tru", "NaN", "[]", "[1]", "[[]]", "{}", "{,}", ""),
]
VALUES = [f'"{text}"' for text in STRINGS] + OTHERS
FIELDS = [
    ("kv/range", '{"key":%s}'),
    ("kv/range", '{"limit":%s}'),
    ("kv/range", '{"serializable":%s}'),
    ("kv/range", '{"sort_order":%s}'),
    ("kv/range", '{"stranger":%s}'),
    ("kv/range", '\n {"stranger":"\u00e9"\n,\n "min_mod_revision" : %s }'),
    ("kv/range", "%s"),
    ("kv/range", '{"key":"YQ==","key":%s}'),
    ("kv/txn", '{"success":%s}'),
    ("kv/txn", '{"success":[{},%s]}'),
    ("kv/txn", '{"compare":[{"key":"YQ==","version":1,"value":%s}]}'),
    ("kv/txn", '{"compare":[{"create_revision":%s}]}'),
    ("kv/txn", '{"failure":[{"request_put":%s}]}'),
    ("auth/user/get", '{"name":%s}'),
    ("auth/user/get", "{%s:1}"),
]


@pytest.mark.parametrize(("target", "form"), FIELDS)
def test_values_are_those_that_etcd_takes(etcd: Connection, target: str, form: str) -> None:
    for text in VALUES:
        compare(etcd, target, (form % text).encode())


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"{", b'{"', b'{"key', b'{"key"', b'{"key":', b'{"key":"YQ==",'),
        *(b"-", b"1", b"1e", b"tr", b'{"key":"YQ=="}x', b"{}{}", b"{}\xff", b"\xef\xbb\xbf{}"),
        *(b"\xa0", b"\xad", b"'", b"\x07", b"\x7f", b"\\"),
        *(b'{"x":"\xff"}', b'{"\xff":1}', b'{"key":"\xff"}', b'{"x":"\xed\xa0\x80"}'),
        *(b"[" * 10_000 + b"]" * 10_000, b"[" * 10_001, b'{"x":' * 10_000 + b"1" + b"}" * 10_000),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_texts_are_those_that_etcd_takes(etcd: Connection, body: bytes) -> None:
    compare(etcd, "kv/range", body)


def test_deep_transactions_in_etcd(etcd: Connection) -> None:
    for depth in (3332, 3333):
        text, _ = nested_transactions(depth, "success")
        compare(etcd, "kv/txn", text.encode())


@given(number_texts, st.booleans())
@settings(max_examples=50)
def test_integers_are_those_of_etcd(etcd: Connection, text: str, is_quoted: bool) -> None:
    body = f'{{"ID":{json.dumps(text) if is_quoted else text}}}'.encode()
    answer = etcd.ask("/v3/lease/timetolive", body)
    if answer.status == 200:
        request = etcdserverpb.LeaseTimeToLiveRequest(ID=int(answer.json.get("ID", "0")))
        assert decode("lease/timetolive", body) == canonical(request)
    else:
        assert our_refusal("lease/timetolive", body)


@given(base64_texts)
def test_bytes_are_those_of_etcd(etcd: Connection, text: str) -> None:
    put = {"request_put": {"key": "YQ==", "value": text}}
    read = {"request_range": {"key": "YQ=="}}
    body = json.dumps({"success": [put, read]}).encode()
    answer = etcd.ask("/v3/kv/txn", body)
    if answer.status == 200:
        stored = answer.json["responses"][1]["response_range"]["kvs"][0].get("value", "")
        found = etcdserverpb.TxnRequest.FromString(decode("kv/txn", body))
        assert found.success[0].request_put.value == base64.b64decode(stored)
    else:
        assert our_refusal("kv/txn", body)
