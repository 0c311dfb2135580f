"""Check that a proxy's cached answer is not older than answers its clients already have.

Other checks require that the answer is a state of the store at the revision in its header. With
ordering enabled, no current read is older than any earlier answer of the same process.
"""

from bisect import bisect_right
from collections.abc import Sequence

from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.sim.calls import METHODS
from kvorum.sim.history import History, Record
from kvorum.sim.violation import Violation

GUARANTEE = "proxies show their clients' writes"
ORDERED = "ordering proxies never go back"
_WRITES = {"Put", "DeleteRange", "Txn", "LeaseRevoke", "Lock", "Unlock"}
_WRITES |= {"Campaign", "Proclaim", "Resign"}


def check_cached(
    history: History, proxy: int, started: Sequence[float], *, is_ordering: bool
) -> None:
    """Require that each current read through a proxy covers the process's earlier answers."""
    told: dict[int, list[tuple[int, int, Record]]] = {}
    for record in history.records:
        if record.member == proxy and record.is_answered and record.returned is not None:
            is_read = isinstance(record.request, RangeRequest) and record.kind != "stream"
            if _writes(record) or (is_read and is_ordering):
                process = bisect_right(started, record.finished)
                entry = (record.returned, record.response.header.revision, record)
                told.setdefault(process, []).append(entry)
    floors = {process: _Floor(entries) for process, entries in told.items()}
    for record in history.records:
        if (
            record.member == proxy
            and record.is_answered
            and isinstance(record.request, RangeRequest)
            and record.kind != "stream"
            and not record.request.revision
        ):
            floor = floors.get(bisect_right(started, record.finished))
            before = None if floor is None else floor.before(record.invoked)
            if before is not None and record.response.header.revision < before[1]:
                _, revision, other = before
                raise Violation(
                    GUARANTEE if _writes(other) else ORDERED,
                    f"{record.kind} #{record.invoked} at m{proxy} was answered with revision "
                    f"{record.response.header.revision}, after {other.kind} #{other.invoked} had "
                    f"been answered with {revision}",
                    record,
                    other,
                )


class _Floor:
    """The newest revision that one process had returned by each moment."""

    def __init__(self, entries: list[tuple[int, int, Record]]) -> None:
        self._moments: list[int] = []
        self._newest: list[tuple[int, int, Record]] = []
        for entry in sorted(entries, key=lambda each: each[0]):
            if not self._newest or entry[1] > self._newest[-1][1]:
                self._moments.append(entry[0])
                self._newest.append(entry)

    def before(self, moment: int) -> tuple[int, int, Record] | None:
        place = bisect_right(self._moments, moment) - 1
        return None if place < 0 else self._newest[place]


def _writes(record: Record) -> bool:
    return METHODS[type(record.request)][0].rpartition("/")[2] in _WRITES
