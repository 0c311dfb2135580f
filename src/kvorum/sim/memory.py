"""Memory is bounded: a member's state for others neither exceeds its limits nor outlives them."""

from collections.abc import Callable, Collection

from kvorum.member.procedures import Procedure
from kvorum.server.rpc.interface import STREAM_PENDING_BYTES_MAX
from kvorum.sim.edge import STALLED_FACTOR
from kvorum.sim.machine import Machine
from kvorum.sim.violation import Violation
from kvorum.state.apply.callers import Front

GUARANTEE = "memory is bounded"
PROPOSALS = "proposals that wait"
CALLS = "calls neither answered nor ended"

# The server notices a full stream at the end of a turn, which sends at most this.
TURN_BYTES_MAX = 256 << 10
# Runs have a few dozen callers, each with one open request; the member adds a few.
WAITING_MAX = 200


Counted = Callable[[Collection[Procedure]], int]


def check_bounds(machine: Machine) -> None:
    """Require that a running member keeps no more than its limits allow."""
    member = machine.member
    if member is None:
        return
    for name, size in kept(machine).items():
        if size > WAITING_MAX:
            raise Violation(GUARANTEE, f"{machine.name} keeps {size} {name}")
    for call, size in machine.edge.pending.items():
        if size > STREAM_PENDING_BYTES_MAX + STALLED_FACTOR * TURN_BYTES_MAX:
            raise Violation(GUARANTEE, f"{machine.name} holds {size} bytes for stream {call}")


def kept(machine: Machine, counted: Counted = len) -> dict[str, int]:
    """Return how much a member keeps for clients and peers; `counted` counts its procedures."""
    member = machine.member
    assert member is not None
    assert machine.server is not None
    procedures, reads, calls = member.procedures, member.replica.reads, machine.server.calls
    gateway, front = machine.server.gateway, machine.server.front
    return {
        CALLS: len(calls.unary) + len(calls.streams),
        PROPOSALS: len(member.replica.proposals.pending),
        "calls in JSON": len(gateway.open),
        "deadlines of calls in JSON": len(gateway._deadlines),
        "headers of HTTP answers": len(front._extra),
        "procedures": counted(procedures._calls.values())
        + counted([procedure for procedure, _ in procedures._questions.values()])
        + counted(procedures._held.values()),
        "calls with a token to come": len(machine.server.services.undecided._calls),
        "procedures that wait for a signal": sum(map(counted, procedures._signalled.values())),
        "watches of procedures": len(procedures._watches),
        "reads that wait": len(reads.waiting) + len(reads.confirmed),
        "watch streams": member.hub.streams_open,
        "watchers": member.hub.watchers_open,
        "pinned revisions": len(member.state.store._pins._counts),
        "reads that raft keeps": len(member.replica.node.raft.read_only.unconfirmed),
    }


def leftovers(machine: Machine, *, proposals: bool = True) -> dict[str, int]:
    """Return how much a member still keeps, by kind; nothing, once all clients are gone.

    Members ask each other, and themselves, as long as they run; these calls do not count. Lost
    proposals, and their calls, are kept for seconds; `proposals` can leave them out. A member that
    knows no leader keeps proposals of its own, which do not count: one that was removed while it
    was away tries to publish its name for as long as it runs.
    """
    member = machine.member
    if member is None:
        return {"processes that run": 0}
    sizes = kept(machine, _of_clients)
    if not member.leader:
        waiting = member.replica.proposals.pending.values()
        sizes[PROPOSALS] -= sum(caller.front is Front.MEMBER for _, caller, *_ in waiting)
    return {
        name: size
        for name, size in sizes.items()
        if size and (proposals or name not in (PROPOSALS, CALLS))
    }


def _of_clients(procedures: Collection[Procedure]) -> int:
    return sum(each.caller.front not in (Front.MEMBER, Front.PEER) for each in procedures)
