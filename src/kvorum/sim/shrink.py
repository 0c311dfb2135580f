"""Cuts from a failing plan what the failure does not need: faults, options, clients, requests.

Each cut is a smaller plan that is run as a whole; it is kept if the same guarantee is violated. A
cut changes everything that comes after it: the remaining plan has another history, but a shorter
one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from kvorum.sim.faults import without_faults
from kvorum.sim.plan import Plan
from kvorum.sim.run import simulate_plan
from kvorum.sim.workloads import Workload

RUNS_MAX = 300


@dataclass(slots=True)
class Shrunk:
    """The remaining plan, and how many runs it took to find."""

    plan: Plan
    guarantee: str
    runs: int


def shrink(plan: Plan, runs_max: int = RUNS_MAX) -> Shrunk | None:
    """Return a smaller plan that violates the same guarantee; None if this one violates none."""
    guarantee = simulate_plan(plan).guarantee
    if not guarantee:
        return None
    shrunk = Shrunk(plan, guarantee, 1)
    while True:
        before = shrunk.plan
        _cut_requests(shrunk, runs_max)
        for cut in _cuts(shrunk.plan):
            _try(shrunk, cut(shrunk.plan), runs_max)
        if shrunk.plan == before or shrunk.runs >= runs_max:
            return shrunk


def _try(shrunk: Shrunk, plan: Plan, runs_max: int) -> bool:
    """Run a smaller plan, and keep it if it fails as well."""
    if plan == shrunk.plan or shrunk.runs >= runs_max:
        return False
    shrunk.runs += 1
    if simulate_plan(plan).guarantee != shrunk.guarantee:
        return False
    shrunk.plan = plan
    return True


class _Cut:
    """Replaces one field of a plan, of its faults or of its workload."""

    def __init__(self, part: str, name: str, value: object) -> None:
        self._part = part
        self._name = name
        self._value = value

    def __call__(self, plan: Plan) -> Plan:
        if self._part == "options":
            kept = {name: each for name, each in plan.options.items() if name != self._name}
            return replace(plan, options=kept)
        if self._part == "limits":
            left = {name: each for name, each in plan.limits.items() if name != self._name}
            return replace(plan, limits=left)
        if not self._part:
            return replace(plan, **{self._name: self._value})  # type: ignore[arg-type]
        part = replace(getattr(plan, self._part), **{self._name: self._value})
        return replace(plan, **{self._part: part})


def _cuts(plan: Plan) -> Iterator[_Cut]:
    peace = without_faults()
    yield _Cut("", "limits", {})
    yield _Cut("", "realm", None)
    yield _Cut("", "dialects", None)
    yield _Cut("", "library", None)
    yield _Cut("", "suspensions", None)
    yield _Cut("", "tier", None)
    yield _Cut("", "backups", None)
    for field in fields(peace):
        yield _Cut("faults", field.name, getattr(peace, field.name))
    for name in ("watchers", "reflectors", "sessions", "leaseholders", "observers", "inspectors"):
        yield _Cut("workload", name, 0)
        yield _Cut("workload", name, min(1, getattr(plan.workload, name)))
    yield _Cut("workload", "value_bytes_max", 0)
    for name in plan.options:
        yield _Cut("options", name, None)
    for name in plan.limits:
        yield _Cut("limits", name, None)
    for name in ("waits_for_leases", "waits_for_proposals"):
        yield _Cut("", name, False)
    for part in (0.25, 0.5, 0.75):
        yield _Cut("", "fault_seconds", part * plan.fault_seconds)


def requests_of(workload: Workload) -> list[tuple[int, int]]:
    """Return the requests that a workload makes, as client and number."""
    return [
        (client, number)
        for client in range(1, len(workload.shapes) + 1)
        for number in range(1, workload.requests + 1)
        if (client, number) not in workload.left_out
    ]


def _cut_requests(shrunk: Shrunk, runs_max: int) -> None:
    """Leave out requests: those of a client at once, then halves, quarters, and so on."""
    for client in range(1, len(shrunk.plan.workload.shapes) + 1):
        made = requests_of(shrunk.plan.workload)
        _leave_out(shrunk, [each for each in made if each[0] == client], runs_max)
    size = len(requests_of(shrunk.plan.workload)) // 2
    while size and shrunk.runs < runs_max:
        made = requests_of(shrunk.plan.workload)
        for start in range(0, len(made), size):
            _leave_out(shrunk, made[start : start + size], runs_max)
        size //= 2


def _leave_out(shrunk: Shrunk, requests: list[tuple[int, int]], runs_max: int) -> bool:
    workload = shrunk.plan.workload
    left_out = workload.left_out | frozenset(requests)
    return _try(
        shrunk, replace(shrunk.plan, workload=replace(workload, left_out=left_out)), runs_max
    )


def describe(plan: Plan) -> list[str]:
    """Return the contents of a plan, one line each."""
    peace = without_faults()
    faults = [
        f"{field.name}={getattr(plan.faults, field.name)}"
        for field in fields(peace)
        if getattr(plan.faults, field.name) != getattr(peace, field.name)
    ]
    workload = plan.workload
    made = requests_of(workload)
    clients = sorted({client for client, _ in made})
    return [
        f"  faults, for {plan.fault_seconds:.2f} s: {', '.join(faults) or 'none'}",
        f"  requests: {len(made)} of clients {', '.join(map(str, clients)) or 'none'}",
        f"  {workload.watchers} watchers, {workload.reflectors} caches, {workload.sessions} "
        f"sessions, {workload.leaseholders} leaseholders, {workload.observers} observers, "
        f"{workload.inspectors} inspectors",
        f"  options: {plan.options}",
        f"  limits: {plan.limits or 'as in production'}",
    ]
