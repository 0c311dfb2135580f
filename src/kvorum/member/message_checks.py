"""Check peers' raft messages, so that none spoils this member's log or term.

A member writes an entry before it is committed, and applies committed entries at its start. So a
member that wrote an entry which it cannot apply could never restart; a member that drops the entry
only lags, as if the message were lost. Entries must be of kinds that this version applies, with
terms in the order that raft demands of a leader. Fields that a newer version adds to a known
request do no harm, because this version ignores them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from google.protobuf.message import DecodeError

from kvorum.api.requests import DeleteRange, Put, Range, Txn, parse_put
from kvorum.member.terms import has_credible_term
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import APPEND_THREAD, APPLY_THREAD, NONE, Message, MessageType
from kvorum.raft.wire import decode_conf_change
from kvorum.state.apply import requests
from kvorum.state.apply.execution import DECODERS
from kvorum.state.apply.incompatible_entries import describe_foreign
from kvorum.state.membership.cluster import ADDITIONS
from kvorum.state.membership.documents import decode_context
from kvorum.state.membership.versions import parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvorum.api.pb.membershippb import ClusterVersionSetRequest, DowngradeInfoSetRequest
    from kvorum.member.replica import Replica

_OF_LEADERS: Final = (MessageType.APP, MessageType.HEARTBEAT, MessageType.SNAP)
_NOT_NODES: Final = (NONE, APPEND_THREAD, APPLY_THREAD)


def is_acceptable(replica: Replica, message: Message) -> bool:
    """Return whether raft may process a message; if not, log the reason at a limited rate."""
    if message.term > replica.node.raft.term and not has_credible_term(replica, message):
        return False
    kind = message.type
    if not message.term and kind in _OF_LEADERS:
        replica.boundary.log_refusal(
            f"a message of type {kind} of {message.sender:x} without a term"
        )
        return False
    if not message.entries or kind not in (MessageType.APP, MessageType.PROP):
        return True
    try:
        if kind == MessageType.APP:
            _check_terms(message.log_term, message.entries)
        for entry in message.entries:
            check_entry(entry, replica.limits.txn_slice_bytes)
    except (ValueError, DecodeError) as error:
        replica.boundary.log_refusal(
            f"entries of {message.sender:x}, which this member could not apply, and everything "
            f"behind them: {error}"
        )
        return False
    return True


def _check_terms(before: int, entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.term < max(before, 1):
            raise ValueError(f"entry {entry.index} of term {entry.term} follows one of {before}")
        before = entry.term


def check_entry(entry: Entry, txn_bytes_max: int) -> None:
    """Raise ValueError or DecodeError if this version cannot apply an entry.

    A transaction of more than `txn_bytes_max` is not decoded.
    """
    if entry.type == EntryType.NORMAL:
        if not entry.data:
            return
        try:
            _check_request(entry.data, txn_bytes_max)
        except (ValueError, DecodeError) as error:
            described = describe_foreign(entry.data, error)
            raise ValueError(f"entry {entry.index} {described}") from error
    elif entry.type == EntryType.CONF_CHANGE:
        _check_change(entry)
    else:
        raise ValueError(f"entry {entry.index} is of type {entry.type}, which no member makes")


def _check_request(data: bytes, txn_bytes_max: int) -> None:
    put = requests.extract_anonymous_put(data)
    # Nearly all entries are such puts.
    if put is not None and parse_put(put) is not None:
        return
    kind, _, body, _ = requests.decode(data)
    decode = DECODERS.get(kind)
    if decode is None:
        raise ValueError(f"no request of number {kind} is known")
    if kind == requests.TXN and len(body) > txn_bytes_max:
        # Decoding it would block the loop. The leader that proposed it has decoded it.
        return
    request = decode(body)
    _check_operation(request)
    if kind == requests.CLUSTER_VERSION_SET:
        parse_version(cast("ClusterVersionSetRequest", request).ver)
    elif kind == requests.DOWNGRADE_INFO_SET:
        downgrade = cast("DowngradeInfoSetRequest", request)
        if downgrade.enabled:
            parse_version(downgrade.ver)


def _check_operation(operation: object) -> None:
    """Refuse operations that every front refuses and that appliers do not expect."""
    if isinstance(operation, Txn):
        for each in (*operation.success, *operation.failure):
            _check_operation(each)
    elif operation is None:
        raise ValueError("an operation of a transaction is empty")
    elif isinstance(operation, (Put, Range, DeleteRange)) and not operation.key:
        raise ValueError("an operation has no key")


def _check_change(entry: Entry) -> None:
    change = decode_conf_change(entry)
    assert isinstance(change, ConfChange), "an entry of that type holds such a change"
    if change.type == ChangeType.REMOVE_NODE:
        return
    context = decode_context(change.context)
    if context.member.id != change.node_id:
        raise ValueError(f"a change of member {change.node_id:x}names {context.member.id:x}")
    # Clients may name any id in other changes; the membership refuses unknown ones on apply.
    is_addition = change.type in ADDITIONS and not context.is_promotion
    if is_addition and change.node_id in _NOT_NODES:
        raise ValueError(f"an addition of member {change.node_id:x}, which cannot be one")
