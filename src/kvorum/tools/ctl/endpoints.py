"""`endpoint`: show health, status and hash of each endpoint."""

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, TypeVar

from kvorum.api.durations import duration_text
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.errors import KvorumError, PermissionDeniedError
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import GENERAL, CommandError
from kvorum.tools.cli.output import ResultOutput, as_json, table_text
from kvorum.tools.cli.text import human_bytes
from kvorum.tools.ctl.alarms import NAMES
from kvorum.tools.ctl.failures import error_text, hint_of, print_error_line, print_hint
from kvorum.tools.ctl.invocation import CtlInvocation

T = TypeVar("T")

HEALTH_HEADS = ("endpoint", "health", "took", "error")
HASH_HEADS = ("endpoint", "hash", "hash_revision")
STATUS_HEADS = (
    "endpoint",
    "ID",
    "version",
    "storage version",
    "db size",
    "in use",
    "percentage not in use",
    "quota",
    "is leader",
    "is learner",
    "raft term",
    "raft index",
    "raft applied index",
    "errors",
    "downgrade target version",
    "downgrade enabled",
)


class EndpointHealth(NamedTuple):
    """The health of an endpoint."""

    endpoint: str
    is_healthy: bool
    took: str
    """The duration of the read; empty if the login failed."""
    error: str = ""
    hint: str = ""


def health(invocation: CtlInvocation) -> None:
    """Check all endpoints at once; show them in the order of their answers."""
    clients = [
        (each, invocation.client([each], is_logged_in=False))
        for each in requested_endpoints(invocation)
    ]
    answers: SimpleQueue[EndpointHealth] = SimpleQueue()
    for endpoint, client in clients:
        # A daemon thread that hangs does not keep the program from exiting.
        Thread(
            target=lambda *asked: answers.put(_health(invocation, *asked)),
            args=(endpoint, client),
            daemon=True,
        ).start()
    found = [answers.get() for _ in clients]
    output = invocation.output
    output.show(
        found,
        lambda all_of_them: _simple_health(output, all_of_them),
        fields=lambda all_of_them: _health_fields(output, all_of_them),
        table=lambda all_of_them: output.line(
            table_text(HEALTH_HEADS, map(_health_row, all_of_them))
        ),
        json=lambda all_of_them: list(map(_health_json, all_of_them)) or None,
        has_protobuf=False,
    )
    if any(each.error for each in found):
        hints = dict.fromkeys(each.hint for each in found if each.hint)
        raise CommandError("unhealthy cluster", hint="\nHint: ".join(hints))


def status(invocation: CtlInvocation) -> None:
    """Show the status of the endpoints, requested one after the other."""

    def ask(client: Client) -> pb.StatusResponse:
        return invocation.ask(client, rpcs.STATUS, pb.StatusRequest(), pb.StatusResponse)

    found, error = _ask_each(invocation, ask, "status")
    output = invocation.output
    output.show(
        found,
        lambda all_of_them: _lines(output, map(_status_row, all_of_them)),
        fields=lambda all_of_them: _status_fields(output, all_of_them),
        table=lambda all_of_them: output.line(
            table_text(STATUS_HEADS, map(_status_row, all_of_them))
        ),
        json=lambda all_of_them: _json("Status", all_of_them),
        has_protobuf=False,
    )
    if error is not None:
        raise SystemExit(GENERAL)


def hash_kv(invocation: CtlInvocation) -> None:
    """Show the hashes of the endpoints' keys, requested one after the other."""
    request = pb.HashKVRequest(revision=invocation.number("rev"))

    def ask(client: Client) -> pb.HashKVResponse:
        return invocation.ask(client, rpcs.HASH_KV, request, pb.HashKVResponse)

    found, error = _ask_each(invocation, ask, "hash")
    output = invocation.output
    output.show(
        found,
        lambda all_of_them: _lines(output, map(_hash_row, all_of_them)),
        fields=lambda all_of_them: _hash_fields(output, all_of_them),
        table=lambda all_of_them: output.line(table_text(HASH_HEADS, map(_hash_row, all_of_them))),
        json=lambda all_of_them: _json("HashKV", all_of_them),
        has_protobuf=False,
    )
    if error is not None:
        raise error


def requested_endpoints(invocation: CtlInvocation) -> list[str]:
    """Return the given endpoints, or with `--cluster` those that all members advertise."""
    _ = invocation.output
    if not invocation.switch("cluster"):
        return invocation.texts("endpoints")
    request = pb.MemberListRequest(linearizable=True)
    with invocation.client(is_logged_in=False) as client:
        try:
            client.log_in()
        except KvorumError as error:
            raise CommandError(error_text(error)) from error
        try:
            answer = invocation.ask(client, rpcs.MEMBER_LIST, request, pb.MemberListResponse)
        except KvorumError as error:
            raise CommandError(
                f"failed to fetch endpoints from etcd cluster member list: {error_text(error)}"
            ) from error
    return [url for member in answer.members for url in member.clientURLs]


def _ask_each(
    invocation: CtlInvocation, ask: Callable[[Client], T], what: str
) -> tuple[list[tuple[str, T]], KvorumError | None]:
    """Make a call to every endpoint separately; return the answers, and the last error."""
    found: list[tuple[str, T]] = []
    last: KvorumError | None = None
    for endpoint in requested_endpoints(invocation):
        with invocation.client([endpoint]) as client:
            try:
                found.append((endpoint, ask(client)))
            except KvorumError as error:
                last = error
                print_hint(error)
                print_error_line(
                    f"Failed to get the {what} of endpoint {endpoint} ({error_text(error)})"
                )
    return found, last


def _health(invocation: CtlInvocation, endpoint: str, client: Client) -> EndpointHealth:
    """Check an endpoint: a linearizable read must succeed, and no alarm may be active."""
    with client:
        try:
            client.log_in()
        except KvorumError as error:
            return EndpointHealth(endpoint, False, "", error_text(error), hint_of(error))
        started_at = time.monotonic_ns()
        problem: KvorumError | None = None
        try:
            request = pb.RangeRequest(key=b"health")
            invocation.ask(client, rpcs.RANGE, request, pb.RangeResponse)
        except PermissionDeniedError:
            # The refusal took a quorum, too.
            pass
        except KvorumError as error:
            problem = error
        took = duration_text(time.monotonic_ns() - started_at)
        if problem is not None:
            return EndpointHealth(endpoint, False, took, error_text(problem), hint_of(problem))
        try:
            answer = invocation.ask(client, rpcs.ALARM, pb.AlarmRequest(), pb.AlarmResponse)
        except KvorumError:
            return EndpointHealth(endpoint, False, took, "Unable to fetch the alarm list")
    if answer.alarms:
        names = "".join(f"{NAMES.get(each.alarm, 'UNKNOWN')} " for each in answer.alarms)
        return EndpointHealth(endpoint, False, took, f"Active Alarm(s): {names}")
    return EndpointHealth(endpoint, True, took)


# Output formats.


def _lines(output: ResultOutput, rows: "map[tuple[str, ...]]") -> None:
    for row in rows:
        output.line(", ".join(row))


def _json(name: str, found: "list[tuple[str, T]]") -> object:
    # Go encodes an empty list here as null.
    return [{"Endpoint": endpoint, name: as_json(answer)} for endpoint, answer in found] or None


def _simple_health(output: ResultOutput, found: list[EndpointHealth]) -> None:
    for each in found:
        if each.error:
            output.flush()
            print_error_line(
                f"{each.endpoint} is unhealthy: failed to commit proposal: {each.error}"
            )
        else:
            output.line(
                f"{each.endpoint} is healthy: successfully committed proposal: took = {each.took}"
            )


def _health_fields(output: ResultOutput, found: list[EndpointHealth]) -> None:
    for each in found:
        output.field("Endpoint", each.endpoint)
        output.field("Health", each.is_healthy)
        output.line(f'"Took" : {each.took}')
        output.line(f'"Error" : {each.error}')
        output.line()


def _health_row(each: EndpointHealth) -> tuple[str, ...]:
    return each.endpoint, _boolean(each.is_healthy), each.took, each.error


def _health_json(each: EndpointHealth) -> dict[str, object]:
    shown: dict[str, object] = {
        "endpoint": each.endpoint,
        "health": each.is_healthy,
        "took": each.took,
    }
    return {**shown, "error": each.error} if each.error else shown


def _status_row(found: tuple[str, pb.StatusResponse]) -> tuple[str, ...]:
    endpoint, status = found
    used = status.dbSizeInUse * 100 // status.dbSize if status.dbSize else 100
    return (
        endpoint,
        f"{status.header.member_id:x}",
        status.version,
        status.storageVersion,
        human_bytes(status.dbSize),
        human_bytes(status.dbSizeInUse),
        f"{100 - used}%",
        human_bytes(status.dbSizeQuota),
        _boolean(status.leader == status.header.member_id),
        _boolean(status.isLearner),
        str(status.raftTerm),
        str(status.raftIndex),
        str(status.raftAppliedIndex),
        ", ".join(status.errors),
        status.downgradeInfo.targetVersion,
        _boolean(status.downgradeInfo.enabled),
    )


def _status_fields(output: ResultOutput, found: list[tuple[str, pb.StatusResponse]]) -> None:
    for endpoint, status in found:
        output.header_fields(status.header)
        output.field("Version", status.version)
        output.field("StorageVersion", status.storageVersion)
        output.field("DBSize", status.dbSize)
        output.field("DBSizeInUse", status.dbSizeInUse)
        output.field("DBSizeQuota", status.dbSizeQuota)
        output.field("Leader", status.leader)
        output.field("IsLearner", status.isLearner)
        output.field("RaftIndex", status.raftIndex)
        output.field("RaftAppliedIndex", status.raftAppliedIndex)
        output.line(f'"Errors" : [{" ".join(status.errors)}]')
        output.field("Endpoint", endpoint)
        output.field("DowngradeTargetVersion", status.downgradeInfo.targetVersion)
        output.field("DowngradeEnabled", status.downgradeInfo.enabled)
        output.line()


def _hash_row(found: tuple[str, pb.HashKVResponse]) -> tuple[str, ...]:
    endpoint, answer = found
    return endpoint, str(answer.hash), str(answer.hash_revision)


def _hash_fields(output: ResultOutput, found: list[tuple[str, pb.HashKVResponse]]) -> None:
    for endpoint, answer in found:
        output.header_fields(answer.header)
        output.field("Endpoint", endpoint)
        output.field("Hash", answer.hash)
        output.field("HashRevision", answer.hash_revision)
        output.line()


def _boolean(value: bool) -> str:
    return "true" if value else "false"
