"""The parsers of canonical bytes read what protobuf reads, and nothing that it does not."""

import tracemalloc
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import requests
from kvorum.api.codec import varint
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.etcdserverpb import (
    Compare,
    DeleteRangeRequest,
    LeaseKeepAliveRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from tests.api import messages


class Kind(NamedTuple):
    message: type[Message]
    strategy: st.SearchStrategy[Any]
    parse: Callable[[bytes], Any]
    decode: Callable[[bytes], Any]
    of: Callable[[Any], Any]


def sliced(begin: Callable[[Any], Generator[None, None, Any]]) -> Callable[[Any], Any]:
    """Return what does the work of a generator, in slices as small as can be."""

    def run(data: Any) -> Any:
        slices = begin(data)
        try:
            while True:
                next(slices)
        except StopIteration as end:
            return end.value

    return run


KINDS = {
    "put": Kind(
        PutRequest, messages.puts, requests.parse_put, requests.decode_put, requests.put_of
    ),
    "range": Kind(
        RangeRequest,
        st.one_of(messages.ranges, messages.simple_ranges),
        requests.parse_range,
        requests.decode_range,
        requests.range_of,
    ),
    "delete": Kind(
        DeleteRangeRequest,
        messages.deletes,
        requests.parse_delete_range,
        requests.decode_delete_range,
        requests.delete_range_of,
    ),
    "txn": Kind(
        TxnRequest, messages.txns, requests.parse_txn, requests.decode_txn, requests.txn_of
    ),
    "txn in slices": Kind(
        TxnRequest,
        messages.txns,
        sliced(partial(requests.parse_txn_slices, slice_bytes=1)),
        sliced(partial(requests.decode_txn_slices, slice_bytes=1)),
        sliced(requests.txn_of_slices),
    ),
}


SINGLE = {
    requests.Put: PutRequest,
    requests.Range: RangeRequest,
    requests.DeleteRange: DeleteRangeRequest,
}


def held(request: Any) -> Any:
    """Return what a request holds, by the names that the message's fields have."""
    if request is None:
        return None
    if isinstance(request, requests.Txn):
        branches = (request.compares, request.success, request.failure)
        return [[held(each) for each in branch] for branch in branches]
    if isinstance(request, requests.Compare):
        return request.result, request.target, request.key, request.range_end, request.operand
    return fields_of(request, SINGLE[type(request)])


def fields_of(request: Any, message: type[Message]) -> tuple[str, dict[str, Any]]:
    fields = {field.name: getattr(request, field.name) for field in message.DESCRIPTOR.fields}
    return message.DESCRIPTOR.name, fields


def agrees(kind: Kind, data: bytes) -> None:
    """What is parsed is a message that protobuf reads alike and writes in the same bytes."""
    parsed = kind.parse(data)
    try:
        message = kind.message.FromString(data)
    except DecodeError:
        assert parsed is None
        return
    assert held(kind.decode(data)) == held(kind.of(message))
    if parsed is not None:
        assert held(parsed) == held(kind.of(message))
        assert message.SerializeToString(deterministic=True) == data


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_canonical_bytes_are_recognised(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    message = data.draw(kind.strategy)
    assert held(kind.parse(message.SerializeToString())) == held(kind.of(message))


@given(st.one_of(messages.puts, messages.ranges, messages.deletes))
def test_an_object_holds_the_fields_of_its_message(message: Message) -> None:
    of = {kind.message: kind.of for kind in KINDS.values()}[type(message)]
    assert held(of(message)) == fields_of(message, type(message))


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_changed_bytes(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    encoded = bytearray(data.draw(kind.strategy).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded)))
        change = data.draw(st.sampled_from(["set", "drop", "insert", "cut"]))
        byte = data.draw(st.integers(0, 255))
        if change == "insert":
            encoded.insert(at, byte)
        elif change == "cut":
            del encoded[at:]
        elif at < len(encoded):
            encoded[at : at + 1] = bytes([byte]) if change == "set" else b""
    agrees(kind, bytes(encoded))


@pytest.mark.parametrize("name", KINDS)
@given(
    data=st.lists(
        st.sampled_from(b"\0\1\2\x7f\x80\x81\x0a\x12\x18\x1a\x20\x22\x28\x30"), max_size=14
    )
)
def test_any_bytes(name: str, data: list[int]) -> None:
    agrees(KINDS[name], bytes(data))


@given(
    st.integers(-(2**63), 2**63 - 1).filter(bool),
    st.lists(st.sampled_from(b"\0\1\x7f\x80\x81\xff\x08\x10"), max_size=12),
)
def test_the_id_of_a_lease(lease_id: int, data: list[int]) -> None:
    encoded = LeaseKeepAliveRequest(ID=lease_id).SerializeToString()
    assert requests.parse_lease_id(encoded) == lease_id
    for changed in (bytes(data), b"\x08" + bytes(data), encoded + bytes(data)):
        parsed = requests.parse_lease_id(changed)
        if parsed is not None:
            assert LeaseKeepAliveRequest(ID=parsed).SerializeToString() == changed


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x01a\x12\x01b\x0a\x01c",  # a field twice
        b"\x12\x01b\x0a\x01a",  # out of order
        b"\x0a\x01a\x12\x00",  # an empty field
        b"\x0a\x81\x00a",  # a length longer than needed
        b"\x0a\x01a\x18\x80\x00",  # a zero, and longer than needed
        b"\x0a\x01a\x20\x02",  # a flag that is neither 0 nor 1
        b"\x0a\x01a\x78\x01",  # an unknown field
    ],
)
def test_unusual_messages_are_left_to_protobuf(data: bytes) -> None:
    assert requests.parse_put(data) is None
    agrees(KINDS["put"], data)


def test_an_operand_of_another_kind_counts_as_none() -> None:
    compare = Compare(target=Compare.VALUE, key=b"k", version=3)
    assert held(requests.txn_of(TxnRequest(compare=[compare])).compares[0]) == (
        0,
        3,
        b"k",
        b"",
        b"",
    )
    compare = Compare(target=Compare.MOD, key=b"k", value=b"v")
    assert held(requests.txn_of(TxnRequest(compare=[compare])).compares[0]) == (0, 2, b"k", b"", 0)


def test_an_operation_may_be_missing() -> None:
    message = TxnRequest(success=[RequestOp()])
    assert requests.parse_txn(message.SerializeToString()) is None
    assert held(requests.txn_of(message)) == [[], [None], []]


def test_nesting_has_a_limit() -> None:
    data = b""
    for _ in range(requests.NESTING_MAX + 1):
        operation = b"\x22" + length_of(data) + data
        data = b"\x12" + length_of(operation) + operation
    assert requests.parse_txn(data) is None
    with pytest.raises(DecodeError):
        requests.decode_txn(data)


def length_of(data: bytes) -> bytes:
    return varint(len(data))


@given(messages.txns)
def test_a_txn_in_slices_is_the_same_txn(message: TxnRequest) -> None:
    data = message.SerializeToString()
    assert held(KINDS["txn in slices"].parse(data)) == held(requests.parse_txn(data))
    assert held(KINDS["txn in slices"].of(message)) == held(requests.txn_of(message))


@pytest.mark.parametrize("levels", [90, 190])
def test_a_nested_transaction_is_read_without_a_copy_for_every_level(levels: int) -> None:
    put = RequestOp(request_put=PutRequest(key=b"a", value=b"v" * 1_000_000))
    data = TxnRequest(success=[put]).SerializeToString()
    for _ in range(levels):
        operation = b"\x22" + varint(len(data)) + data
        data = b"\x12" + varint(len(operation)) + operation
    tracemalloc.start()
    parsed = run_to_end(requests.parse_txn_slices(data, PRODUCTION.txn_slice_bytes))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for _ in range(levels):
        assert parsed is not None
        (parsed,) = parsed.success
    assert len(parsed.success[0].value) == 1_000_000
    assert peak_bytes < 6 * len(data)


def run_to_end(slices: Generator[None, None, Any]) -> Any:
    try:
        while True:
            next(slices)
    except StopIteration as end:
        return end.value
