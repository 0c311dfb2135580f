"""Key-value requests as plain objects, and two ways to decode them.

The objects' fields have the names of the message's fields. The objects are of classes, because
compiled code reads and makes these faster than tuples; no code changes an object.

`parse_*` recognises a message in its canonical shape, the one every protobuf library writes: fields
in order, nothing empty, no unknown field, the shortest numbers. If it returns an object, the bytes
may be passed on unchanged, because every reader decodes them alike. Otherwise it returns None.

A length of two bytes is as common as one of a single byte, so the parsers read both without a call.

`decode_*` reads every valid message, through protobuf if necessary, and raises DecodeError for
invalid ones. Property tests check the parsers against protobuf.

A transaction may hold a hundred thousand operations: `decode_txn_slices` is a generator that yields
where a turn may end.
"""

from collections.abc import Generator, Iterable
from typing import Final, TypeAlias

from kvorum.api.codec import read_varint
from kvorum.api.pb import etcdserverpb


class Put:
    """A PutRequest."""

    __slots__ = ("ignore_lease", "ignore_value", "key", "lease", "prev_kv", "value")

    def __init__(
        self,
        key: bytes,
        value: bytes = b"",
        lease: int = 0,
        prev_kv: bool = False,
        ignore_value: bool = False,
        ignore_lease: bool = False,
    ) -> None:
        self.key = key
        self.value = value
        self.lease = lease
        self.prev_kv = prev_kv
        self.ignore_value = ignore_value
        self.ignore_lease = ignore_lease


class Range:
    """A RangeRequest."""

    __slots__ = (
        "count_only",
        "key",
        "keys_only",
        "limit",
        "max_create_revision",
        "max_mod_revision",
        "min_create_revision",
        "min_mod_revision",
        "range_end",
        "revision",
        "serializable",
        "sort_order",
        "sort_target",
    )

    def __init__(
        self,
        key: bytes,
        range_end: bytes = b"",
        limit: int = 0,
        revision: int = 0,
        sort_order: int = 0,
        sort_target: int = 0,
        serializable: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        min_mod_revision: int = 0,
        max_mod_revision: int = 0,
        min_create_revision: int = 0,
        max_create_revision: int = 0,
    ) -> None:
        self.key = key
        self.range_end = range_end
        self.limit = limit
        self.revision = revision
        self.sort_order = sort_order
        self.sort_target = sort_target
        self.serializable = serializable
        self.keys_only = keys_only
        self.count_only = count_only
        self.min_mod_revision = min_mod_revision
        self.max_mod_revision = max_mod_revision
        self.min_create_revision = min_create_revision
        self.max_create_revision = max_create_revision


class DeleteRange:
    """A DeleteRangeRequest."""

    __slots__ = ("key", "prev_kv", "range_end")

    def __init__(self, key: bytes, range_end: bytes = b"", prev_kv: bool = False) -> None:
        self.key = key
        self.range_end = range_end
        self.prev_kv = prev_kv


class Compare:
    """A compare of a transaction.

    The operand has the target's type: bytes for VALUE, a number otherwise. It is 0 or empty if the
    message held an operand of another target.
    """

    __slots__ = ("key", "operand", "range_end", "result", "target")

    def __init__(
        self, result: int, target: int, key: bytes, range_end: bytes, operand: int | bytes
    ) -> None:
        self.result = result
        self.target = target
        self.key = key
        self.range_end = range_end
        self.operand = operand


class Txn:
    """A TxnRequest."""

    __slots__ = ("compares", "failure", "success")

    def __init__(
        self, compares: list[Compare], success: "list[Operation]", failure: "list[Operation]"
    ) -> None:
        self.compares = compares
        self.success = success
        self.failure = failure


Operation: TypeAlias = Range | Put | DeleteRange | Txn | None
"""The content of a RequestOp; None if it is empty."""

VERSION: Final = 0
CREATE: Final = 1
MOD: Final = 2
VALUE: Final = 3
LEASE: Final = 4
"""Targets of compares."""
EQUAL: Final = 0
GREATER: Final = 1
LESS: Final = 2
NOT_EQUAL: Final = 3
"""Results of compares."""

NESTING_MAX: Final = 200
"""Deeper transactions are left to protobuf, which refuses them."""

OPERATIONS_PER_SLICE: Final = 100

_SIGN: Final = 1 << 63
_UINT64_LIMIT: Final = 1 << 64


def parse_put(data: bytes) -> Put | None:
    """Read a canonical PutRequest."""
    size = len(data)
    value = b""
    try:
        if data[0] != 0x0A:
            return None
        length, at = data[1], 2
        if length >= 0x80:
            length, at = _length(data, 1)
        if not length:
            return None
        end = at + length
        key = data[at:end]
        if end == size:
            return Put(key, value)
        if data[end] == 0x12:
            length, at = data[end + 1], end + 2
            if length >= 0x80:
                if 0 < (high := data[at]) < 0x80:
                    length, at = length + (high << 7) - 0x80, at + 1
                else:
                    length, at = _length(data, at - 1)
            if not length:
                return None
            end = at + length
            value = data[at:end]
            if end == size:
                return Put(key, value)
        lease, prev_kv, ignore_value, ignore_lease = _scalars(data, end, 0x18, 4)
    except (IndexError, ValueError):
        return None
    # In a canonical message every flag is 0 or 1.
    if (prev_kv | ignore_value | ignore_lease) & ~1:
        return None
    return Put(key, value, lease, bool(prev_kv), bool(ignore_value), bool(ignore_lease))


def parse_range(data: bytes) -> Range | None:
    """Read a canonical RangeRequest."""
    size = len(data)
    range_end = b""
    try:
        if data[0] != 0x0A:
            return None
        length, at = data[1], 2
        if length >= 0x80:
            length, at = _length(data, 1)
        if not length:
            return None
        end = at + length
        key = data[at:end]
        # Most reads request one key at the current revision.
        if end == size:
            return Range(key)
        if data[end:] == b"\x38\x01":
            return Range(key, serializable=True)
        if data[end] == 0x12:
            length, at = data[end + 1], end + 2
            if length >= 0x80:
                length, at = _length(data, at - 1)
            if not length:
                return None
            end = at + length
            range_end = data[at:end]
        limit, revision, order, target, serializable, keys_only, count_only, *bounds = _scalars(
            data, end, 0x18, 11
        )
    except (IndexError, ValueError):
        return None
    if (serializable | keys_only | count_only) & ~1 or (order | target) & ~0x7F:
        return None
    min_mod, max_mod, min_create, max_create = bounds
    return Range(
        key,
        range_end,
        limit,
        revision,
        order,
        target,
        bool(serializable),
        bool(keys_only),
        bool(count_only),
        min_mod,
        max_mod,
        min_create,
        max_create,
    )


def parse_lease_id(data: bytes) -> int | None:
    """Read a message whose only field is a lease id, if it is canonical."""
    try:
        if data[0] != 0x08:
            return None
        lease_id, end = _number(data, 1)
    except (IndexError, ValueError):
        return None
    return lease_id if end == len(data) else None


def parse_delete_range(data: bytes) -> DeleteRange | None:
    """Read a canonical DeleteRangeRequest."""
    size = len(data)
    range_end = b""
    try:
        if data[0] != 0x0A:
            return None
        length, at = _length(data, 1)
        end = at + length
        key = data[at:end]
        if end < size and data[end] == 0x12:
            length, at = _length(data, end + 1)
            end = at + length
            range_end = data[at:end]
        (prev_kv,) = _scalars(data, end, 0x18, 1)
    except (IndexError, ValueError):
        return None
    return None if prev_kv & ~1 else DeleteRange(key, range_end, bool(prev_kv))


def parse_txn(data: bytes, nesting_max: int = NESTING_MAX) -> Txn | None:
    """Read a canonical TxnRequest; compares with a range_end are left to protobuf."""
    compares: list[Compare] = []
    success: list[Operation] = []
    failure: list[Operation] = []
    at, size, last = 0, len(data), 0x0A
    try:
        while at < size:
            tag = data[at]
            if tag < last:
                return None
            last = tag
            length, start = data[at + 1], at + 2
            if length >= 0x80:
                if 0 < (high := data[start]) < 0x80:
                    length, start = length + (high << 7) - 0x80, start + 1
                else:
                    length, start = _length(data, at + 1)
            at = start + length
            if at > size or not length:
                return None
            if tag == 0x0A:
                compare = _parse_compare(data[start:at])
                if compare is None:
                    return None
                compares.append(compare)
                continue
            operation = _parse_operation(data, start, at, nesting_max)
            if operation is None:
                return None
            if tag == 0x12:
                success.append(operation)
            elif tag == 0x1A:
                failure.append(operation)
            else:
                return None
    except (IndexError, ValueError):
        return None
    return Txn(compares, success, failure)


def parse_txn_slices(
    data: bytes, slice_bytes: int, nesting_max: int = NESTING_MAX, at: int = 0, size: int = -1
) -> Generator[None, None, Txn | None]:
    """Read a canonical TxnRequest as `parse_txn` does, in slices of about `slice_bytes`.

    Any run of a message's fields is a message, too, so neighbouring fields are parsed together; a
    long nested transaction is divided on its own. A nested transaction is given by two offsets into
    the same data, because with a copy for every level two megabytes would take hundreds.
    """
    if size < 0:
        size = len(data)
    if size - at <= slice_bytes:
        return parse_txn(data[at:size], nesting_max)
    compares: list[Compare] = []
    success: list[Operation] = []
    failure: list[Operation] = []
    whole = Txn(compares, success, failure)
    last = 0
    start = at  # of the first field that is not parsed yet
    try:
        while at < size:
            tag = data[at]
            length, body = _length(data, at + 1)
            end = body + length
            if end > size or tag < last:
                return None
            last = tag
            if end - start > slice_bytes:
                if not _append_fields(whole, data[start:at], nesting_max):
                    return None
                yield
                start = at
                if end - at > slice_bytes and tag != 0x0A and data[body] == 0x22 and nesting_max:
                    length, inner = data[body + 1], body + 2
                    if length >= 0x80:
                        length, inner = _length(data, body + 1)
                    if inner + length != end or tag not in (0x12, 0x1A):
                        return None
                    nested = yield from parse_txn_slices(
                        data, slice_bytes, nesting_max - 1, inner, end
                    )
                    if nested is None:
                        return None
                    (success if tag == 0x12 else failure).append(nested)
                    start = end
            at = end
    except (IndexError, ValueError):
        return None
    return whole if _append_fields(whole, data[start:size], nesting_max) else None


def _append_fields(whole: Txn, data: bytes, nesting_max: int) -> bool:
    """Parse some fields of a transaction and append their content; return whether they parse."""
    txn = parse_txn(data, nesting_max)
    if txn is None:
        return False
    whole.compares += txn.compares
    whole.success += txn.success
    whole.failure += txn.failure
    return True


def _parse_operation(data: bytes, at: int, end: int, nesting_max: int) -> Operation:
    """Read the content of a canonical RequestOp; None if it is empty or not canonical."""
    tag = data[at]
    length, start = data[at + 1], at + 2
    if length >= 0x80:
        if 0 < (high := data[start]) < 0x80:
            length, start = length + (high << 7) - 0x80, start + 1
        else:
            length, start = _length(data, at + 1)
    if start + length != end:
        return None
    body = data[start:end]
    if tag == 0x12:
        return parse_put(body)
    if tag == 0x0A:
        return parse_range(body)
    if tag == 0x1A:
        return parse_delete_range(body)
    if tag == 0x22 and nesting_max:
        return parse_txn(body, nesting_max - 1)
    return None


def _parse_compare(data: bytes) -> Compare | None:
    result = target = at = 0
    if data[0] == 0x08:
        result, at = data[1], 2
        if not 0 < result < 0x80:
            return None
    if data[at] == 0x10:
        target = data[at + 1]
        if not 0 < target <= LEASE:
            return None
        at += 2
    if data[at] != 0x1A:
        return None
    length, start = data[at + 1], at + 2
    if not 0 < length < 0x80:
        length, start = _length(data, at + 1)
    end = start + length
    key = data[start:end]
    # The operand's field follows the target's order: version, create, mod, value, lease.
    operand: int | bytes
    tag = data[end]
    if target == VALUE:
        length = data[end + 1]
        at = end + 2
        if length >= 0x80:
            length, at = _length(data, end + 1)
        operand = data[at : at + length]
        at += length
        wanted = 0x3A
    else:
        operand = data[end + 1]
        at = end + 2
        if operand >= 0x80:
            operand, at = _number(data, end + 1)
        wanted = 0x40 if target == LEASE else 0x20 + 8 * target
    if tag != wanted or at != len(data):
        return None
    return Compare(result, target, key, b"", operand)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read the length of a non-empty field; return it and the offset of the payload."""
    length, end = read_varint(data, at)
    if not data[end - 1]:
        raise ValueError("empty field, or a length longer than needed")
    return length, end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a non-zero int64 in its shortest form; return it and the offset after it."""
    number, end = read_varint(data, at)
    last = data[end - 1]
    if not last:
        raise ValueError("zero, or a number longer than needed")
    return number if number < _SIGN else number - _UINT64_LIMIT, end


def _scalars(data: bytes, at: int, first_tag: int, count: int) -> list[int]:
    """Read the rest of a message: varint fields with consecutive numbers; absent ones are 0."""
    values = [0] * count
    size, last = len(data), first_tag - 8
    if at > size:
        raise ValueError("field longer than its message")
    while at < size:
        tag = data[at]
        place, wire_type = divmod(tag - first_tag, 8)
        if tag <= last or wire_type or place >= count:
            raise ValueError("no known field in its place")
        values[place], at = _number(data, at + 1)
        last = tag
    return values


def put_of(message: etcdserverpb.PutRequest) -> Put:
    """Convert the protobuf message to an object."""
    return Put(
        message.key,
        message.value,
        message.lease,
        message.prev_kv,
        message.ignore_value,
        message.ignore_lease,
    )


def range_of(message: etcdserverpb.RangeRequest) -> Range:
    """Convert the protobuf message to an object."""
    return Range(
        message.key,
        message.range_end,
        message.limit,
        message.revision,
        message.sort_order,
        message.sort_target,
        message.serializable,
        message.keys_only,
        message.count_only,
        message.min_mod_revision,
        message.max_mod_revision,
        message.min_create_revision,
        message.max_create_revision,
    )


def delete_range_of(message: etcdserverpb.DeleteRangeRequest) -> DeleteRange:
    """Convert the protobuf message to an object."""
    return DeleteRange(message.key, message.range_end, message.prev_kv)


def txn_of(message: etcdserverpb.TxnRequest) -> Txn:
    """Convert the protobuf message to an object."""
    return Txn(
        [_compare_of(compare) for compare in message.compare],
        [_operation_of(operation) for operation in message.success],
        [_operation_of(operation) for operation in message.failure],
    )


def txn_of_slices(message: etcdserverpb.TxnRequest) -> Generator[None, None, Txn]:
    """Convert the protobuf message to an object, in slices."""
    compares: list[Compare] = []
    for compare in message.compare:
        compares.append(_compare_of(compare))
        if len(compares) % OPERATIONS_PER_SLICE == 0:
            yield
    success = yield from _operations_of(message.success)
    failure = yield from _operations_of(message.failure)
    return Txn(compares, success, failure)


def _operations_of(
    messages: Iterable[etcdserverpb.RequestOp],
) -> Generator[None, None, list[Operation]]:
    operations: list[Operation] = []
    for message in messages:
        if message.WhichOneof("request") == "request_txn":
            yield
            nested = yield from txn_of_slices(message.request_txn)
            operations.append(nested)
        else:
            operations.append(_operation_of(message))
            if len(operations) % OPERATIONS_PER_SLICE == 0:
                yield
    return operations


def _compare_of(message: etcdserverpb.Compare) -> Compare:
    target: int = message.target
    operand: int | bytes = 0
    if target == VALUE:
        operand = message.value
    elif target == VERSION:
        operand = message.version
    elif target == CREATE:
        operand = message.create_revision
    elif target == MOD:
        operand = message.mod_revision
    elif target == LEASE:
        operand = message.lease
    return Compare(message.result, target, message.key, message.range_end, operand)


def _operation_of(message: etcdserverpb.RequestOp) -> Operation:
    kind = message.WhichOneof("request")
    if kind == "request_put":
        return put_of(message.request_put)
    if kind == "request_range":
        return range_of(message.request_range)
    if kind == "request_delete_range":
        return delete_range_of(message.request_delete_range)
    if kind == "request_txn":
        return txn_of(message.request_txn)
    return None


def decode_put(data: bytes) -> Put:
    """Read any PutRequest."""
    return parse_put(data) or put_of(etcdserverpb.PutRequest.FromString(data))


def decode_range(data: bytes) -> Range:
    """Read any RangeRequest."""
    return parse_range(data) or range_of(etcdserverpb.RangeRequest.FromString(data))


def decode_delete_range(data: bytes) -> DeleteRange:
    """Read any DeleteRangeRequest."""
    request = parse_delete_range(data)
    return request or delete_range_of(etcdserverpb.DeleteRangeRequest.FromString(data))


def decode_txn(data: bytes) -> Txn:
    """Read any TxnRequest."""
    return parse_txn(data) or txn_of(etcdserverpb.TxnRequest.FromString(data))


def decode_txn_slices(data: bytes, slice_bytes: int) -> Generator[None, None, Txn]:
    """Read any TxnRequest, in slices of about `slice_bytes`."""
    txn = yield from parse_txn_slices(data, slice_bytes)
    if txn is None:
        message = etcdserverpb.TxnRequest.FromString(data)
        yield
        txn = yield from txn_of_slices(message)
    return txn
