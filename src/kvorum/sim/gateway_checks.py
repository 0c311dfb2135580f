"""Checks of the JSON gateway after every turn: which calls it has, and which bytes it keeps."""

from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.http.calls import Gateway
from kvorum.server.rpc.table import RPCS, RpcKind
from kvorum.server.server import Server
from kvorum.server.shutdown import ServerPhase
from kvorum.sim.arrivals import Arrivals
from kvorum.sim.edge import SimulatedEdge
from kvorum.sim.violation import Violation

GUARANTEE = "every call in JSON is answered or ended"


def check_gateway(
    name: str, now: float, server: Server, edge: SimulatedEdge, arrivals: Arrivals
) -> None:
    """Require that a serving member has its clients' calls, and keeps nothing of others."""
    gateway, calls = server.gateway, server.calls
    if not edge.http_ever and not calls.streams:
        return
    if server.phase not in (ServerPhase.SERVING, ServerPhase.DRAINING):
        return
    # Clients of other unary calls may be gone, as over gRPC: the server need not act on that.
    # A call without a procedure only waits for its entry.
    procedures = server.member.procedures._calls
    gone = [
        call
        for call, together in calls.unary.items()
        if call in edge.http_ever and call in procedures and RPCS[together.method].waits_for_others
    ]
    gone = [call for call in (*calls.streams, *gone) if not edge.is_open(call)]
    if not edge.http_ever and not gone:
        return
    waiting = arrivals.events() | {event[:2] for event in server._events}
    for call in edge.http:
        if call not in gateway.open and (EdgeEventKind.HTTP_OPENED, call) not in waiting:
            raise Violation(GUARANTEE, f"{name} has forgotten call {call}")
    for call, found in gateway.open.items():
        is_ending = (EdgeEventKind.ENDED, call) in waiting
        if call not in edge.http and not is_ending:
            raise Violation(GUARANTEE, f"{name} keeps call {call}, which has ended")
        served = calls.unary if found.route.kind is RpcKind.UNARY else calls.streams
        if found.has_begun != (call in served):
            raise Violation(GUARANTEE, f"{name} has call {call} begun as {found.has_begun}")
        if found.deadline <= now:
            raise Violation(GUARANTEE, f"{name} goes on with call {call} after its deadline")
    for call in gone:
        if (EdgeEventKind.ENDED, call) not in waiting:
            raise Violation(GUARANTEE, f"{name} serves call {call}, whose client is gone")
    _check_kept(name, server, gateway)


def _check_kept(name: str, server: Server, gateway: Gateway) -> None:
    held = 0
    for call, found in gateway.open.items():
        kept = found.body.kept_bytes
        if found.held_bytes != kept:
            raise Violation(
                GUARANTEE,
                f"{name} counts {found.held_bytes} bytes of call {call}, and keeps {kept}",
            )
        held += kept
        if found.body.has_more and not (server.is_busy or call in gateway.undecided):
            raise Violation(GUARANTEE, f"{name} sleeps with more of call {call} to read")
    if gateway._held_bytes != held:
        raise Violation(GUARANTEE, f"{name} counts {gateway._held_bytes} bytes, and keeps {held}")
    if gateway.requests or gateway.events:
        raise Violation(GUARANTEE, f"{name} left {gateway.requests} and {gateway.events} behind")
    if not server.front._extra.keys() <= gateway.open.keys():
        raise Violation(GUARANTEE, f"{name} keeps the headers of {set(server.front._extra)}")
