"""Answer Range requests by concatenating stored bytes.

A point read at the current revision, as most reads are, looks the key up and puts its stored
bytes between two small fields. All other reads go through the store's ranges, in slices if they
are long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvorum.api.errors import StatusError
from kvorum.api.responses import range_body_of_one
from kvorum.state.apply.permissions import refuse_if_outdated
from kvorum.state.mvcc.ranges import RangeOptions, reply_parts
from kvorum.state.mvcc.slices import join_in_slices, run_first_slice

if TYPE_CHECKING:
    from kvorum.api.requests import Range
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Sliced, Slices
    from kvorum.state.apply.state import State


def range_response(state: State, caller: Caller, request: Range) -> Sliced:
    """Return the encoded RangeResponse, a Status, or slices that return one of them."""
    auth = state.auth
    if not auth.is_enabled or caller.identifying is None:
        return _found(state, request)
    if caller.revision != auth.revision:
        caller = caller.identifying.identify_again(caller)
    if caller.refusal is not None:
        return caller.refusal
    refusal = auth.keys_refusal(caller.user, caller.revision, request.key, request.range_end, False)
    if refusal is not None:
        return refusal
    return refuse_if_outdated(state, caller, _found(state, request))


def _found(state: State, request: Range) -> Sliced:
    if is_plain(request):
        store = state.store
        kv = store.get(request.key)
        header = state.header.field(store.revision)
        return header if kv is None else header + range_body_of_one(kv)
    return run_first_slice(range_answer(state, range_options(request)))


def is_plain(request: Range) -> bool:
    """Return whether a request asks for one key at the current revision, with its value."""
    return not (
        request.range_end
        or request.revision
        or request.limit
        or request.keys_only
        or request.count_only
        or request.sort_order
        or request.sort_target
        or request.min_mod_revision
        or request.max_mod_revision
        or request.min_create_revision
        or request.max_create_revision
    )


def range_options(request: Range) -> RangeOptions:
    """Return the request as the store's options."""
    return RangeOptions(
        request.key,
        request.range_end,
        request.limit,
        request.revision,
        request.sort_order,
        request.sort_target,
        request.keys_only,
        request.count_only,
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    )


def range_answer(state: State, options: RangeOptions) -> Slices:
    """Return the encoded RangeResponse or a Status, in slices, without checking permissions."""
    try:
        result = yield from state.store.range_slices(options)
        parts = yield from reply_parts(result, state.limits)
    except StatusError as error:
        return error.status
    parts.insert(0, state.header.field(result.revision))
    return (yield from join_in_slices(parts, state.limits.slice_bytes))
