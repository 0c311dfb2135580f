"""Guarantees for requests on keys, judged after a run; each check is named for its guarantee."""

from collections.abc import Iterator
from typing import Any

from kvorum.api.errors import COMPACTED, FUTURE_REV, Status
from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    TxnRequest,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim import model
from kvorum.sim.history import History, Record
from kvorum.sim.linearizability import find_contradiction
from kvorum.sim.reduction import reduce_history
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import is_clients_key
from kvorum.state.mvcc.keyvalue import key_of

EXPLAINED = "answers are explained by the history"
DURABLE = "acknowledged is durable"
MONOTONIC = "revisions and terms never go back"
_KV = PutRequest, RangeRequest, DeleteRangeRequest, TxnRequest


def check_answers(history: History) -> None:
    """Compare every answer with the history at the revision in the answer's header."""
    for record in history.records:
        if not isinstance(record.request, _KV) or record.response is None:
            continue
        if isinstance(record.response, Status):
            _check_refusal(history, record)
        else:
            _check_answer(history, record)


def _fail(record: Record, text: str) -> None:
    raise Violation(
        EXPLAINED,
        f"{record.kind} #{record.invoked} at m{record.member}, answered at "
        f"#{record.returned} with revision {record.response.header.revision}: {text}",
        record,
    )


def _check_answer(history: History, record: Record) -> None:
    request, response = record.request, record.response
    main = response.header.revision
    answer = model.without_headers(response)
    if not isinstance(request, RangeRequest):
        expected, rows = model.run(history, request, main - 1, main)
        if rows and expected.SerializeToString() == answer:
            if history.effects.get(main) != tuple(rows):
                raise Violation(
                    DURABLE,
                    f"{record.kind} #{record.invoked} was acknowledged at revision {main} with "
                    f"{rows!r}, where the history has {history.effects.get(main)!r}",
                    record,
                )
            record.wrote = True
            return
    expected, rows = model.run(history, request, main, main + 1)
    if rows:
        _fail(record, f"answered {response!r}, though it had to write {rows!r}")
    if expected.SerializeToString() != answer:
        _fail(record, f"answered {response!r}, but the state says {expected!r}")
    if isinstance(request, RangeRequest) and request.revision > main:
        _fail(record, f"read at revision {request.revision}")


def _check_refusal(history: History, record: Record) -> None:
    """Require that a member refused to read a revision only where it really lacked it."""
    request, status = record.request, record.response
    if not isinstance(request, RangeRequest):
        return
    if status == COMPACTED and not request.revision and record.linearizable:
        # The read, in pieces, began at the newest revision.
        known = revision_answered_before(history, record.invoked)
        if history.compacted <= known:
            raise Violation(
                EXPLAINED,
                f"{record.kind} #{record.invoked}: is said to be compacted after it began at "
                f"{known} or later, and nobody is beyond {history.compacted}",
            )
    if not request.revision:
        return
    if status == COMPACTED and request.revision >= history.compacted:
        raise Violation(
            EXPLAINED,
            f"{record.kind} #{record.invoked}: revision {request.revision} is said to be "
            f"compacted, and nobody is beyond {history.compacted}",
            record,
        )
    if status == FUTURE_REV and record.linearizable:
        # Clients only ask for revisions that they have seen in answers.
        raise Violation(
            MONOTONIC,
            f"{record.kind} #{record.invoked} at m{record.member}: revision {request.revision} "
            f"was told before, and is said to be in the future",
            record,
        )


def revision_answered_before(history: History, moment: int) -> int:
    """Return the newest revision in the linearizable answers returned before a moment."""
    return max(
        (
            record.response.header.revision
            for record in history.records
            if record.linearizable
            and isinstance(record.request, _KV)
            and record.is_answered
            and (record.returned or 0) < moment
        ),
        default=0,
    )


def check_order(history: History) -> None:
    """Require that revisions and terms never go back, as far as clients can tell.

    A request invoked after another had returned must get a revision and a term at least as high.
    """
    answered = [
        record
        for record in history.records
        if record.linearizable and isinstance(record.request, _KV) and record.is_answered
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
                MONOTONIC,
                f"{record.kind} #{record.invoked} at m{record.member} was answered with revision "
                f"{header.revision} of term {header.raft_term}, after {highest_revision} of term "
                f"{highest_term} had been answered",
                record,
            )


def check_linearizable(history: History) -> None:
    """Require that some sequential order explains all operations."""
    contradiction = find_contradiction(reduce_history(history))
    if contradiction is not None:
        raise Violation(
            "linearizable",
            f"no order explains #{contradiction.invoked}, which saw {contradiction.observed} "
            f"and wrote {contradiction.written}",
            *(each for each in history.records if each.invoked == contradiction.invoked),
        )


def check_once(history: History) -> None:
    """Require that no write took effect twice, and no refused write took effect at all."""
    refused = {
        put.value: record
        for record in history.records
        if isinstance(record.response, Status)
        for put in puts_of(record.request)
    }
    written: dict[bytes, int] = {}
    for main in sorted(history.effects):
        for revision, kv in history.effects[main]:
            if revision & 1 or not is_clients_key(key_of(kv)):
                continue
            value = KeyValue.FromString(kv).value
            if value in written:
                raise Violation(
                    "applied once",
                    f"{value!r} was written at {written[value]} and at {main}",
                    *_writers(history, value),
                )
            if value in refused:
                record = refused[value]
                raise Violation(
                    "refused is not applied",
                    f"{record.kind} #{record.invoked} was answered {record.response.text!r}, "
                    f"but took effect at {main}",
                    record,
                )
            written[value] = main


def _writers(history: History, value: bytes) -> list[Record]:
    return [
        record
        for record in history.records
        if any(put.value == value for put in puts_of(record.request))
    ]


def puts_of(request: Any) -> Iterator[PutRequest]:
    """Return the puts of a request, nested ones too."""
    if isinstance(request, PutRequest):
        yield request
    elif isinstance(request, TxnRequest):
        for each in request.success:
            if each.HasField("request_put"):
                yield each.request_put
            elif each.HasField("request_txn"):
                yield from puts_of(each.request_txn)
