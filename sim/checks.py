"""What must hold of every run, judged when it is over. Each check names its guarantee."""

from typing import Any

from kvorum.api.errors import Status
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.mvcc.keyvalue import key_of
from sim.history import History, Record
from sim.linearizability import find_contradiction
from sim.operations import NEVER, Operation, Pairs
from sim.violation import Violation

_KV = {"put", "get", "list", "delete", "set", "pair"}


def check_answers(history: History) -> None:
    """Compare every answer with the history of effects, at the revision it names."""
    for record in history.records:
        if record.response is None or isinstance(record.response, Status):
            continue
        check = _ANSWERS.get(record.kind)
        if check is not None:
            check(history, record)


def _fail(record: Record, text: str) -> None:
    raise Violation(
        "answers are explained by the history",
        f"{record.kind} #{record.invoked} at m{record.member}, answered at "
        f"#{record.returned} with revision {record.response.header.revision}: {text}",
    )


def _encoded(kv: Any) -> bytes:
    encoded: bytes = kv.SerializeToString()
    return encoded


def _has_written(history: History, record: Record, put: Any) -> None:
    """Require that a put took effect under the revision of the answer."""
    revision = record.response.header.revision
    kv = history.at(put.key, revision)
    if revision not in history.effects:
        _fail(record, "nobody has that revision")
    if kv is None or not _is_written(kv, put.value, revision, history, put.key):
        raise Violation(
            "acknowledged is durable",
            f"{record.kind} #{record.invoked} of {put.key!r} was acknowledged at revision "
            f"{revision}, where the history has {history.effects[revision]!r}",
        )


def _is_written(kv: bytes, value: bytes, revision: int, history: History, key: bytes) -> bool:
    message = KeyValue.FromString(kv)
    before = history.at(key, revision - 1)
    create, version = revision, 1
    if before is not None:
        old = KeyValue.FromString(before)
        create, version = old.create_revision, old.version + 1
    return (
        message.value == value
        and message.mod_revision == revision
        and message.create_revision == create
        and message.version == version
    )


def _check_previous(history: History, record: Record, key: bytes, kv: Any | None) -> None:
    before = history.at(key, record.response.header.revision - 1)
    if (None if kv is None else _encoded(kv)) != before:
        _fail(record, f"the value before is said to be {kv!r}, but was {before!r}")


def _put(history: History, record: Record) -> None:
    request, response = record.request, record.response
    _has_written(history, record, request)
    if request.prev_kv:
        previous = response.prev_kv if response.HasField("prev_kv") else None
        _check_previous(history, record, request.key, previous)


def _get(history: History, record: Record) -> None:
    response = record.response
    kv = history.at(record.request.key, response.header.revision)
    found = _encoded(response.kvs[0]) if response.kvs else None
    if found != kv or response.count != len(response.kvs):
        _fail(record, f"read {found!r}, but then there was {kv!r}")


def _list(history: History, record: Record) -> None:
    request, response = record.request, record.response
    expected = history.range_at(request.key, request.range_end, response.header.revision)
    if response.count != len(expected):
        _fail(record, f"counted {response.count} keys of {len(expected)}")
    limit = request.limit or len(expected)
    found = [_encoded(kv) for kv in response.kvs]
    if found != expected[:limit] or response.more != (len(expected) > limit):
        _fail(record, f"read {found!r}, but then there was {expected!r}")


def _delete(history: History, record: Record) -> None:
    key, response = record.request.key, record.response
    revision = response.header.revision
    if not response.deleted:
        if history.at(key, revision) is not None:
            _fail(record, "deleted nothing, but there was something")
        return
    if history.at(key, revision) is not None or not any(
        row[0] & 1 for row in history.effects.get(revision, ())
    ):
        raise Violation(
            "acknowledged is durable", f"the delete #{record.invoked} is not at {revision}"
        )
    _check_previous(history, record, key, response.prev_kvs[0])


def _set(history: History, record: Record) -> None:
    request, response = record.request, record.response
    compare = request.compare[0]
    if response.succeeded:
        before = history.at(compare.key, response.header.revision - 1)
        _has_written(history, record, request.success[0].request_put)
        found = None if before is None else _value(before)
        if found != record.expected:
            _fail(record, f"succeeded though it expected {record.expected!r}, not {found!r}")
        return
    kvs = response.responses[0].response_range.kvs
    found = _encoded(kvs[0]) if kvs else None
    if found != history.at(compare.key, response.header.revision):
        _fail(record, f"read {found!r} in its failure branch")
    if (kvs[0].value if kvs else None) == record.expected:
        _fail(record, f"failed though {record.expected!r} was there")


def _pair(history: History, record: Record) -> None:
    request, response = record.request, record.response
    for operation, answer in zip(request.success[:-1], response.responses, strict=False):
        _has_written(history, record, operation.request_put)
        put = answer.response_put
        previous = put.prev_kv if put.HasField("prev_kv") else None
        _check_previous(history, record, operation.request_put.key, previous)
    kvs = response.responses[-1].response_range.kvs
    key = request.success[-1].request_range.key
    if [_encoded(kv) for kv in kvs] != [history.at(key, response.header.revision)]:
        _fail(record, "did not read what it wrote")


_ANSWERS = {
    "put": _put,
    "get": _get,
    "list": _list,
    "delete": _delete,
    "set": _set,
    "pair": _pair,
}


def _value(kv: bytes) -> bytes:
    value: bytes = KeyValue.FromString(kv).value
    return value


def check_order(history: History) -> None:
    """Require that revisions and terms never go back, as far as clients can tell.

    What was invoked after another had returned must have a revision and a term that are as high.
    """
    answered = [
        record
        for record in history.records
        if record.linearizable
        and record.kind in _KV
        and record.response is not None
        and not isinstance(record.response, Status)
    ]
    returns = sorted(answered, key=lambda record: record.returned or 0)
    highest_revision = highest_term = place = 0
    for record in sorted(answered, key=lambda record: record.invoked):
        while place < len(returns) and (returns[place].returned or 0) < record.invoked:
            header = returns[place].response.header
            highest_revision = max(highest_revision, header.revision)
            highest_term = max(highest_term, header.raft_term)
            place += 1
        header = record.response.header
        if header.revision < highest_revision or header.raft_term < highest_term:
            raise Violation(
                "revisions and terms never go back",
                f"{record.kind} #{record.invoked} at m{record.member} was answered with revision "
                f"{header.revision} of term {header.raft_term}, after {highest_revision} of term "
                f"{highest_term} had been answered",
            )


def check_linearizable(history: History) -> None:
    """Require that all operations could have happened one after the other."""
    operations = [
        operation for record in history.records if (operation := operation_of(record)) is not None
    ]
    contradiction = find_contradiction([*operations, *_unclaimed_deletions(history)])
    if contradiction is not None:
        raise Violation(
            "linearizable",
            f"no order explains #{contradiction.invoked}, which saw {contradiction.observed} "
            f"and wrote {contradiction.written}",
        )


def _claimed_deletions(history: History) -> set[int]:
    """Return the revisions at which a client was told that it deleted something."""
    return {
        record.response.header.revision
        for record in history.records
        if record.kind == "delete"
        and record.response is not None
        and not isinstance(record.response, Status)
        and record.response.deleted
    }


def _unclaimed_deletions(history: History) -> list[Operation]:
    """Return the deletions that no client asked for: leases that ended."""
    claimed = _claimed_deletions(history)
    return [
        Operation(0, NEVER, (), ((key_of(kv), None),), certain=False)
        for main, rows in history.effects.items()
        for revision, kv in rows
        if revision & 1 and main not in claimed
    ]


def operation_of(record: Record) -> Operation | None:
    """Reduce a request to what it saw of keys and what it wrote; None if it says nothing."""
    request, response = record.request, record.response
    if record.kind not in _KV or isinstance(response, Status) or not record.linearizable:
        return None
    certain = response is not None
    observed: Pairs = ()
    written: Pairs = ()
    if record.kind == "put":
        written = ((request.key, request.value),)
        if certain and request.prev_kv:
            previous = response.prev_kv.value if response.HasField("prev_kv") else None
            observed = ((request.key, previous),)
    elif record.kind == "get" and certain:
        observed = ((request.key, response.kvs[0].value if response.kvs else None),)
    elif record.kind == "list" and certain:
        observed = tuple((kv.key, kv.value) for kv in response.kvs)
    elif record.kind == "delete":
        if certain:
            previous = response.prev_kvs[0].value if response.deleted else None
            observed = ((request.key, previous),)
        if not certain or response.deleted:
            written = ((request.key, None),)
    elif record.kind == "set":
        key = request.compare[0].key
        if not certain or response.succeeded:
            observed = ((key, record.expected),)
            written = ((key, request.success[0].request_put.value),)
        else:
            kvs = response.responses[0].response_range.kvs
            observed = ((key, kvs[0].value if kvs else None),)
    elif record.kind == "pair":
        puts = [each.request_put for each in request.success[:-1]]
        written = tuple((put.key, put.value) for put in puts)
    if not observed and not written:
        return None
    returned = record.returned if record.returned is not None else NEVER
    return Operation(record.invoked, returned, observed, written, certain)


def check_once(history: History) -> None:
    """Require that no write took effect twice, and none that was refused."""
    refused = {
        put.value: record
        for record in history.records
        if isinstance(record.response, Status)
        for put in _puts_of(record)
    }
    written: dict[bytes, int] = {}
    for main in sorted(history.effects):
        for revision, kv in history.effects[main]:
            if revision & 1:
                continue
            value = _value(kv)
            if value in written:
                raise Violation(
                    "applied once", f"{value!r} was written at {written[value]} and at {main}"
                )
            if value in refused:
                record = refused[value]
                raise Violation(
                    "refused is not applied",
                    f"{record.kind} #{record.invoked} was answered {record.response.text!r}, "
                    f"but took effect at {main}",
                )
            written[value] = main


def _puts_of(record: Record) -> list[Any]:
    if record.kind == "put":
        return [record.request]
    if record.kind in ("set", "pair"):
        return [each.request_put for each in record.request.success if each.HasField("request_put")]
    return []


def check_leases(history: History) -> None:
    """Require that no lease ended before its time, counted from its last renewal.

    A client that got an answer knows that the lease lives that long from when it asked.
    """
    revoked = {record.request.ID for record in history.records if record.kind == "revoke"}
    renewals: dict[int, list[Record]] = {}
    for record in history.records:
        if record.kind in ("grant", "keep") and record.returned is not None:
            response = record.response
            if not isinstance(response, Status) and response.TTL > 0:
                renewals.setdefault(response.ID, []).append(record)
    claimed = _claimed_deletions(history)
    # Whoever never got an answer may have deleted them as well.
    unknown = {
        record.request.key
        for record in history.records
        if record.kind == "delete" and record.response is None
    }
    for main, rows in history.effects.items():
        for revision, kv in rows:
            if not revision & 1 or main in claimed or key_of(kv) in unknown:
                continue
            before = history.at(key_of(kv), main - 1)
            lease = 0 if before is None else KeyValue.FromString(before).lease
            if lease and lease not in revoked:
                _check_lease(lease, renewals.get(lease, []), history.first_seen[main])


def _check_lease(lease: int, renewals: list[Record], ended: float) -> None:
    for record in renewals:
        until = record.started + record.response.TTL
        if record.finished <= ended < until:
            raise Violation(
                "leases do not end early",
                f"{lease:x} was to live until {until:.3f} by {record.kind} #{record.invoked}, and "
                f"its keys were gone at {ended:.3f}",
            )
