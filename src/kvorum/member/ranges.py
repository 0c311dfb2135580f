"""Answers to Range, from stored bytes by concatenation.

A point read at the current revision, which most reads are, looks the key up and puts its stored
bytes between two small fields. Everything else goes through the store's ranges, in slices if it
is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvorum.api.codec import varint
from kvorum.api.errors import StatusError
from kvorum.mvcc.ranges import RangeOptions, reply_parts
from kvorum.mvcc.slices import begun

if TYPE_CHECKING:
    from kvorum.api.requests import Range
    from kvorum.member.member import Member
    from kvorum.member.results import Sliced, Slices

# Everything but the key: one key at the current revision, with its value.
_PLAIN: Final = (
    (b"", 0, 0, 0, 0, False, False, False, 0, 0, 0, 0),
    (b"", 0, 0, 0, 0, True, False, False, 0, 0, 0, 0),
)
_COUNT_ONE: Final = b"\x20\x01"


def range_response(member: Member, request: Range) -> Sliced:
    """Return the encoded RangeResponse, a Status, or slices that return one of them."""
    if is_plain(request):
        store = member.store
        kv = store.get(request[0])
        header = member.header.field(store.revision)
        return header if kv is None else header + found_one(kv)
    return begun(_range(member, range_options(request)))


def is_plain(request: Range) -> bool:
    """Tell whether a request asks for one key at the current revision, with its value."""
    return request[1:] in _PLAIN


def found_one(kv: bytes) -> bytes:
    """Encode a RangeResponse with one key-value, but for its header."""
    return b"\x12" + varint(len(kv)) + kv + _COUNT_ONE


def range_options(request: Range) -> RangeOptions:
    """Return what the store takes."""
    return RangeOptions(*request[:6], *request[7:])


def _range(member: Member, options: RangeOptions) -> Slices:
    try:
        result = yield from member.store.range_slices(options)
        parts = yield from reply_parts(result)
    except StatusError as error:
        return error.status
    return b"".join([member.header.field(result.revision), *parts])
