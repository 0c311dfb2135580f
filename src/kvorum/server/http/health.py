"""The health endpoints: `/health`, `/livez`, `/readyz`, and one below these for each check.

A check that needs the cluster is a procedure of the member. Checks never change state. NOSPACE
does not make a server unready: it still serves reads and deletes, with which an operator frees
space.
"""

import json
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.api.requests import range_of
from kvorum.member.member import Member
from kvorum.member.waits import Read, Steps, Wait
from kvorum.server.http.http import NO_SNIFFING, TEXT, HttpEndpoint, HttpFront, HttpRequest
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.apply.ranges import range_response

REASONS = {AlarmType.NO_SPACE: "ALARM NOSPACE", AlarmType.CORRUPT: "ALARM CORRUPT"}
NAMES = {AlarmType.NO_SPACE: "NOSPACE", AlarmType.CORRUPT: "CORRUPT"}

_ONE_KEY = range_of(RangeRequest(key=b"\0", range_end=b"\0", limit=1, keys_only=True))
"""The read that checks make; if the local state is unreadable, the read stops the member."""

_PROBE = Caller(Front.HTTP)

Check = Generator[Wait | None, Any, str]
"""A check's steps, which return the reason for a failure, or ""."""


class CheckCount(NamedTuple):
    """A check's counts of successes and failures, and whether it succeeded the last time."""

    success: int
    error: int
    is_well: bool


class HealthEndpoints:
    """Serves the health endpoints, and counts their results for the metrics."""

    def __init__(self, front: HttpFront, member: Member) -> None:
        self._front = front
        self._member = member
        self.successes = 0
        self.failures = 0
        self.checks: dict[tuple[str, str], CheckCount] = {}
        checks: dict[str, Callable[[], Check]] = {
            "data_corruption": self._data_corruption,
            "serializable_read": self._serializable_read,
            "linearizable_read": self._linearizable_read,
            "non_learner": self._non_learner,
        }
        front.add("/health", HttpEndpoint(self._health, on_metrics=True))
        self._add("livez", {"serializable_read": checks["serializable_read"]})
        self._add("readyz", checks)

    # /health

    def _health(self, request: HttpRequest) -> None:
        excluded = {name for name in request.query.get("exclude", ()) if name}
        is_serializable = request.query.get("serializable", [""])[0] == "true"
        self._run(request.call, self._answer_health(request.call, excluded, is_serializable))

    def _answer_health(self, call: int, excluded: set[str], is_serializable: bool) -> Steps:
        reason = yield from self._unhealthy(excluded, is_serializable)
        body = json.dumps(
            {"health": "false" if reason else "true", "reason": reason}, separators=(",", ":")
        )
        if reason:
            self.failures += 1
            self._front.refuse(call, 503, body)
        else:
            self.successes += 1
            self._front.respond(call, 200, [TEXT], body.encode())
        return None

    def _unhealthy(self, excluded: set[str], is_serializable: bool) -> Check:
        for alarm in self._member.state.alarms.raised():
            if NAMES.get(alarm.type, "") not in excluded:
                return REASONS.get(alarm.type, "ALARM UNKNOWN")
        if is_serializable:
            problem = yield from self._serializable_read()
        elif not self._member.leader:
            return "RAFT NO LEADER"
        else:
            problem = yield from self._linearizable_read()
        return f"RANGE ERROR:{problem}" if problem else ""

    # /livez and /readyz

    def _add(self, kind: str, checks: dict[str, Callable[[], Check]]) -> None:
        def root(request: HttpRequest) -> None:
            # Ignore names of unknown checks, so that one probe works with several versions.
            excluded = request.query.get("exclude", ())
            chosen = {name: check for name, check in checks.items() if name not in excluded}
            self._probe(request, kind, chosen)

        self._front.add(f"/{kind}", HttpEndpoint(root, on_metrics=True))
        for name, check in checks.items():
            only = partial(self._probe, kind=kind, checks={name: check})
            self._front.add(f"/{kind}/{name}", HttpEndpoint(only, on_metrics=True))

    def _probe(
        self, request: HttpRequest, kind: str, checks: dict[str, Callable[[], Check]]
    ) -> None:
        is_verbose = "verbose" in request.query
        self._run(request.call, self._answer_probe(request.call, kind, checks, is_verbose))

    def _answer_probe(
        self, call: int, kind: str, checks: dict[str, Callable[[], Check]], is_verbose: bool
    ) -> Steps:
        lines: list[str] = []
        is_well = True
        for name, check in checks.items():
            problem = yield from check()
            self._count(kind, name, not problem)
            is_well = is_well and not problem
            lines.append(f"[-]{name} failed: {problem}\n" if problem else f"[+]{name} ok\n")
        if not is_well:
            self._front.refuse(call, 503, "".join(lines))
        else:
            text = "".join([*lines, "ok\n"]) if is_verbose else "ok\n"
            self._front.respond(call, 200, [TEXT, NO_SNIFFING], text.encode())
        return None

    def _count(self, kind: str, name: str, is_well: bool) -> None:
        success, error, _ = self.checks.get((kind, name), CheckCount(0, 0, True))
        self.checks[kind, name] = CheckCount(success + is_well, error + (not is_well), is_well)

    # Checks.

    def _serializable_read(self) -> Check:
        return _problem((yield Read(range_response, _ONE_KEY)))

    def _linearizable_read(self) -> Check:
        return _problem((yield Read(range_response, _ONE_KEY, linearizable=True)))

    def _data_corruption(self) -> Check:
        if any(alarm.type == AlarmType.CORRUPT for alarm in self._member.state.alarms.raised()):
            return "alarm activated: CORRUPT"
        return ""
        yield

    def _non_learner(self) -> Check:
        return "not supported for learner" if self._member.is_learner else ""
        yield

    def _run(self, call: int, steps: Steps) -> None:
        self._front.keep_open(call, lambda: self._member.cancel(call))
        self._member.start(call, _PROBE, self._front.bounded(call, steps))


def _problem(answer: object) -> str:
    """Return why a read failed, or ""."""
    return answer.text if isinstance(answer, Status) else ""
