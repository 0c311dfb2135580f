"""Check the claims of library users: the locks and leased keys that they believed to hold.

A user may rely on a lease until the moment that the library reports, and on a lock for as long; so
the key must exist until then. Each later holder of a lock has a greater fencing number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.history import History, Record
from kvorum.sim.sessions import Hold
from kvorum.sim.violation import Violation
from kvorum.state.mvcc.keyvalue import key_of

HELD = "what a client takes for held is held"
FENCED = "fencing numbers grow"


@dataclass(slots=True)
class Claim:
    """A user's belief that it holds a key, from one moment to another."""

    name: bytes
    """The lock that the key stands for; empty for a key that only has a lease."""
    holder: str
    key: bytes
    fencing: int
    """The revision that created the key."""
    record: Record
    """The call whose answer gave the key to the user."""
    since: float
    until: float

    @property
    def hold(self) -> Hold:
        """The claim as input for the check of all locks."""
        return Hold(self.name, self.holder, self.record, self.since, self.until)


def check_claims(history: History, claims: Sequence[Claim]) -> None:
    """Require that the key of every claim existed for as long as its holder relied on it."""
    ends = _ends(history)
    for claim in claims:
        found = history.at(claim.key, claim.fencing)
        if found is None or KeyValue.FromString(found).create_revision != claim.fencing:
            raise Violation(
                HELD,
                f"{claim.holder} has {claim.key!r} of revision {claim.fencing}, where the history "
                f"has {found!r}",
                claim.record,
            )
        for main, ended in ends.get(claim.key, ()):
            if main > claim.fencing:
                if ended < claim.until:
                    raise Violation(
                        HELD,
                        f"{claim.holder} was sure of {claim.key!r} until {claim.until:.3f}; it was "
                        f"gone at {ended:.3f}, by revision {main}",
                        claim.record,
                    )
                break
    _check_fencing([claim for claim in claims if claim.name])


def _ends(history: History) -> dict[bytes, list[tuple[int, float]]]:
    """Return when keys were deleted: the revisions, and when a member first applied them."""
    ends: dict[bytes, list[tuple[int, float]]] = {}
    for main in sorted(history.effects):
        for revision, kv in history.effects[main]:
            if revision & 1:
                ends.setdefault(key_of(kv), []).append((main, history.first_seen[main]))
    return ends


def _check_fencing(claims: list[Claim]) -> None:
    newest: dict[bytes, Claim] = {}
    for claim in sorted(claims, key=lambda claim: claim.since):
        last = newest.get(claim.name)
        if last is not None and claim.fencing <= last.fencing:
            raise Violation(
                FENCED,
                f"{claim.holder} got {claim.name!r} at {claim.since:.3f} as {claim.fencing}, after "
                f"{last.holder} had it as {last.fencing}",
                claim.record,
                last.record,
            )
        newest[claim.name] = claim
