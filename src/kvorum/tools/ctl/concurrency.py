"""`lock` and `elect`: hold a place in a queue until a signal, or until the session is lost."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.ranges import prefix_end
from kvorum.client import rpcs
from kvorum.client.errors import (
    DeadlineError,
    KvorumError,
    LeaseLostError,
    OutcomeUnknownError,
    UnavailableError,
)
from kvorum.client.operations import Operation
from kvorum.client.options import FOREVER, SESSION_SECONDS
from kvorum.client.sync.client import Client, Watch
from kvorum.client.sync.leases import grant
from kvorum.client.sync.recipes.sessions import Session
from kvorum.client.sync.recipes.waiting import Deadline
from kvorum.client.values import KeyValue
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes, range_fields, simple_range
from kvorum.tools.ctl.running import run_command
from kvorum.tools.ctl.turns import CANCELED

GRANT_SECONDS_MAX = 5.0
"""The time limit of one attempt to start a session, before the next attempt."""

T = TypeVar("T")


def lock(invocation: CtlInvocation) -> None:
    """Hold a lock until a signal arrives, or while a command runs."""
    if not invocation.arguments:
        raise CommandError(
            "lock takes a lock name argument and an optional command to execute", BAD_ARGUMENTS
        )
    name, *command = invocation.arguments
    ttl = invocation.number("ttl")
    with (
        invocation.client() as client,
        _session(client, ttl if ttl > 0 else SESSION_SECONDS) as session,
        _Signals() as signals,
    ):
        place = _QueueKey(client, session, as_bytes(name), b"")
        revision = _wait(signals, place.wait_for_lock, "mutex: session is expired")
        if command:
            _run(command, place.key, revision)
            return
        _show_key(invocation, client, place.key, "lock lost on init")
        _hold(signals, session, "session expired")


def _run(command: list[str], key: bytes, revision: int) -> None:
    """Run the command; signals do not end this process, and a terminal's reach the command."""
    variables = {"ETCD_LOCK_KEY": os.fsdecode(key), "ETCD_LOCK_REV": str(revision)}
    code, problem = run_command(command, {**variables, **os.environ})
    if problem:
        raise CommandError(problem, code)


def elect(invocation: CtlInvocation) -> None:
    """Lead until a signal arrives, or show the leaders."""
    if len(invocation.arguments) not in (1, 2):
        raise CommandError(
            "elect takes one election name argument and an optional proposal argument",
            BAD_ARGUMENTS,
        )
    name, *proposal = map(as_bytes, invocation.arguments)
    is_listening = invocation.switch("listen")
    with invocation.client() as client:
        if not proposal and not is_listening:
            raise CommandError("no proposal argument but -l not set", BAD_ARGUMENTS)
        if proposal and is_listening:
            raise CommandError("proposal given but -l is set", BAD_ARGUMENTS)
        if is_listening:
            with _Signals() as signals, suppress(_InterruptedError):
                _observe(invocation, signals, _leaders(client, name + b"/"))
            return
        with _session(client, SESSION_SECONDS) as session, _Signals() as signals:
            place = _QueueKey(client, session, name, proposal[0])
            _wait(signals, place.wait_for_turn, "elect: session expired")
            _show_key(invocation, client, place.key)
            _hold(signals, session, "elect: session expired")


def _wait(signals: "_Signals", work: Callable[[], T], lost: str) -> T:
    """Wait for a turn; a signal raises CommandError, so that the caller ends the session."""
    try:
        return signals.run_interruptible(work)
    except LeaseLostError:
        raise CommandError(lost) from None
    except _InterruptedError:
        raise CommandError(CANCELED) from None


def _hold(signals: "_Signals", session: Session, lost: str) -> None:
    """Wait for a signal; raise CommandError if the session is lost first."""
    with suppress(_InterruptedError):
        signals.run_interruptible(session.wait_lost)
        raise CommandError(lost)


# Observing an election.


def _observe(
    invocation: CtlInvocation, signals: "_Signals", leaders: Iterator[pb.RangeResponse]
) -> None:
    """Print every leader and its proclamations, until a call fails."""
    try:
        while True:
            # Print in this thread: a thread that prints at exit could abort Python's shutdown.
            _show(invocation, signals.run_interruptible(lambda: next(leaders)))
    except KvorumError as error:
        raise CommandError("elect: observer lost") from error


def _leaders(client: Client, prefix: bytes) -> Iterator[pb.RangeResponse]:
    """Yield leaders and their proclamations, from the present leader on, without end."""
    operation = Operation(
        rpcs.RANGE, _first(prefix).SerializeToString(), pb.RangeResponse.FromString
    )
    while True:
        found = client.run(operation, FOREVER)
        leader = pb.RangeResponse(header=found.header, kvs=found.kvs)
        if not leader.kvs:
            leader = _first_put(client, prefix, found.header.revision + 1)
        yield leader
        yield from _proclaimed(client, leader.kvs[0].key, leader.header.revision + 1)


def _proclaimed(client: Client, key: bytes, revision: int) -> Iterator[pb.RangeResponse]:
    """Yield a leader's proclamations from a revision on, until its key is deleted."""
    watch = Watch(client.shell, pb.WatchCreateRequest(key=key, start_revision=revision))
    try:
        while True:
            changes = watch.changes()
            for event in changes.events:
                if not event.is_put:
                    return
                yield _leader(changes.header, event.kv)
    finally:
        watch.close()


def _first_put(client: Client, prefix: bytes, revision: int) -> pb.RangeResponse:
    """Return the first key that is put below a prefix from a revision on."""
    request = pb.WatchCreateRequest(
        key=prefix, range_end=prefix_end(prefix), start_revision=revision
    )
    watch = Watch(client.shell, request)
    try:
        while True:
            changes = watch.changes()
            for event in changes.events:
                if event.is_put:
                    found = _leader(changes.header, event.kv)
                    found.header.revision = event.kv.mod_revision
                    return found
    finally:
        watch.close()


def _leader(header: pb.ResponseHeader, kv: KeyValue) -> pb.RangeResponse:
    found = pb.RangeResponse(header=header)
    found.kvs.add(**kv._asdict())
    return found


# A place in the queue.


class _QueueKey:
    """A key that ends with a session, queued behind the older keys of its prefix."""

    def __init__(self, client: Client, session: Session, name: bytes, value: bytes) -> None:
        self._prefix = name + b"/"
        self.key = b"%s%x" % (self._prefix, session.id)
        self._session = session
        self._value = value
        self._deadline = Deadline(client, "its turn has not come", None, session)

    def wait_for_turn(self) -> tuple[int, bool]:
        """Wait until no older key is left; return this key's revision, and whether it waited."""
        mine = pb.Compare(
            key=self.key,
            target=pb.Compare.CREATE,
            result=pb.Compare.EQUAL,
            create_revision=0,
        )
        put = pb.PutRequest(key=self.key, value=self._value, lease=self._session.id)
        first = _first(self._prefix)
        request = pb.TxnRequest(
            compare=[mine],
            success=[pb.RequestOp(request_put=put), pb.RequestOp(request_range=first)],
            failure=[
                pb.RequestOp(request_range=pb.RangeRequest(key=self.key)),
                pb.RequestOp(request_range=first),
            ],
        )
        done = self._deadline.run(
            Operation(rpcs.TXN, request.SerializeToString(), pb.TxnResponse.FromString)
        )
        own, front = done.responses
        revision = done.header.revision
        if not done.succeeded:
            # An earlier attempt put the key, but its answer was lost.
            revision = own.response_range.kvs[0].create_revision
        holders = front.response_range.kvs
        if not holders or holders[0].create_revision >= revision:
            return revision, False
        self._deadline.wait_older_gone(self._prefix, revision)
        return revision, True

    def wait_for_lock(self) -> int:
        """Wait for the lock; return the store's revision at that time."""
        revision, has_waited = self.wait_for_turn()
        if not has_waited:
            return revision
        request = pb.RangeRequest(key=self.key)
        found = self._deadline.run(
            Operation(rpcs.RANGE, request.SerializeToString(), pb.RangeResponse.FromString)
        )
        if not found.kvs:
            raise LeaseLostError("the key is gone")
        return found.header.revision


def _first(prefix: bytes) -> pb.RangeRequest:
    return pb.RangeRequest(
        key=prefix,
        range_end=prefix_end(prefix),
        limit=1,
        sort_order="ASCEND",
        sort_target="CREATE",
    )


def _session(client: Client, ttl: int) -> Session:
    """Start a session; retry until a server answers."""
    while True:
        try:
            granted = grant(client, ttl, 0, min(ttl, GRANT_SECONDS_MAX))
        except (DeadlineError, UnavailableError, OutcomeUnknownError):
            continue
        return Session(client, granted.id, granted.ttl, granted.asked_at)


def _show_key(invocation: CtlInvocation, client: Client, key: bytes, missing: str = "") -> None:
    request = pb.RangeRequest(key=key)
    found = invocation.ask(client, rpcs.RANGE, request, pb.RangeResponse, timeout=FOREVER)
    if missing and not found.kvs:
        raise CommandError(missing)
    _show(invocation, found)


def _show(invocation: CtlInvocation, found: pb.RangeResponse) -> None:
    output = invocation.output
    output.show(
        found,
        lambda shown: simple_range(output, shown),
        fields=lambda shown: range_fields(output, shown),
    )
    output.flush()


# Waiting.


class _InterruptedError(Exception):
    """A signal arrived before the result."""


class _Signals:
    """Lets signals end the waiting, but not the program, while the block runs."""

    def __init__(self) -> None:
        self._happened: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._before: list[tuple[int, Any]] = []

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._note_signal)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _note_signal(self, number: int, _: object) -> None:
        # The handler may run between any two instructions, and `SimpleQueue.put` is reentrant.
        self._happened.put(partial(_interrupt, number))

    def run_interruptible(self, work: Callable[[], T]) -> T:
        """Return what the work returns, or raise what it raises, unless a signal arrives first.

        The work runs in a thread. After a signal nothing waits for the thread; it ends when the
        client closes.
        """

        def done() -> None:
            try:
                result = work()
            except BaseException as error:
                self._happened.put(partial(_raise, error))
            else:
                self._happened.put(lambda: result)

        threading.Thread(target=done, daemon=True).start()
        outcome: T = self._happened.get()()
        return outcome


def _interrupt(number: int) -> None:
    raise _InterruptedError(signal.strsignal(number))


def _raise(error: BaseException) -> None:
    raise error
