"""Serve the reads that may run, one after the other, until the turn's time is over.

Metrics count the usual reads, successful ranges, in groups by start; see `counters`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvorum.state.apply.ranges import range_response

if TYPE_CHECKING:
    from kvorum.member.reads import Read
    from kvorum.member.replica import Replica

READ_BYTES: Final = 1024
"""Bytes read between two checks of the clock; and the bytes that each read counts at least."""


def begin_reads(replica: Replica, deadline: float) -> None:
    """Run ready reads until the deadline; `LongReads` continues the long ones."""
    ready, clock, counters = replica.ready_reads, replica.clock, replica.counters
    reply = replica.out.replies.append
    bytes_per_check = replica.limits.read_bytes_per_clock_check
    spent = 0
    began = counters.stopwatch()
    # The ranges answered since `began`, counted by their start, and all other reads.
    usual, started, count = range_response, replica.started, 0
    groups: list[tuple[object, int]] = []
    others: list[tuple[Read, object]] = []
    while ready:
        read = ready.popleft()
        waiter, caller, execute, request, asked = read
        result = None if execute is None else execute(replica.state, caller, request)
        # Most results are the encoded answer of a client's call.
        if result.__class__ is bytes and waiter.__class__ is int:
            reply((waiter, result))
            spent += READ_BYTES + len(result)
            if execute is not usual:
                others.append((read, result))
            elif asked is started:
                count += 1
            else:
                groups.append((started, count))
                started, count = asked, 1
        elif result is None or isinstance(result, (bytes, tuple)):
            others.append((read, result))
            replica.answer(waiter, result)
            spent += READ_BYTES
        else:
            replica.long_reads.add(read, result)
            spent += bytes_per_check
        if spent >= bytes_per_check:
            spent = 0
            groups.append((started, count))
            began = counters.count_reads(groups, others, began)
            groups, others, count = [], [], 0
            if clock() >= deadline:
                return
    groups.append((started, count))
    counters.count_reads(groups, others, began)
