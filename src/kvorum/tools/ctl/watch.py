"""`watch`: print changes of keys as they happen, and run a command for each.

Watches continue after a lost connection. They end if the server cancels them, or if the member that
serves them has no leader.
"""

import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import UnsupportedOperation
from typing import NamedTuple

from kvorum.api.errors import COMPACTED
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import mvccpb
from kvorum.client.errors import ClosedError, KvorumError
from kvorum.client.keys import key_range
from kvorum.client.sync.client import Client, Watch
from kvorum.client.values import Changes, KeyValue
from kvorum.tools.cli.commands import Command
from kvorum.tools.cli.errors import BAD_ARGUMENTS, INTERRUPTED, INVALID_INPUT, CommandError
from kvorum.tools.cli.output import ResultOutput, as_json
from kvorum.tools.cli.parsing import parse_flags
from kvorum.tools.cli.text import quoted
from kvorum.tools.cli.words import InputLines, split_words
from kvorum.tools.ctl.commands import WATCH_FLAGS
from kvorum.tools.ctl.environment import PREFIXES, WATCH_VARIABLES
from kvorum.tools.ctl.failures import error_text
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes, kv_fields, simple_kv
from kvorum.tools.ctl.running import run_command

NO_COMMAND = "bad number of arguments (found separator --, but no commands)"

_LINE = Command("watch", "A watch of several", "watch", flags=WATCH_FLAGS)

PRINT_SECONDS_MAX = 1.0
"""The time for which the program's exit waits for a thread that is printing."""


class WatchRequest(NamedTuple):
    """The keys to watch, and the command to run for each event."""

    keys: list[str]
    command: list[str]


def watch(invocation: CtlInvocation) -> None:
    """Show changes until the server ends the watch."""
    keys = _keys_of_environment()
    if invocation.switch("interactive"):
        _interact(invocation, keys)
        return
    asked = _parse_request(invocation, keys)
    with invocation.client() as client:
        watch = _begin(client, invocation, asked.keys)
        _follow(invocation.output, watch, asked.command, threading.Lock())
    raise CommandError("watch is canceled by the server", INTERRUPTED)


# Arguments.


def _keys_of_environment() -> list[str]:
    """Return the key and the range end that environment variables name."""
    for prefix in PREFIXES:
        key, end = (os.environ.get(prefix + name, "") for name in WATCH_VARIABLES)
        if key:
            return [key, end] if end else [key]
        if end:
            first, second = (prefix + name for name in WATCH_VARIABLES)
            raise CommandError(f"{first} is empty but got {second}={quoted(end)}", BAD_ARGUMENTS)
    return []


def _parse_request(invocation: CtlInvocation, keys: list[str]) -> WatchRequest:
    """Return the keys and the command that the arguments name; a command follows `--`."""
    arguments, dash_at = invocation.arguments, invocation.given.dash_at
    has_command = dash_at >= 0
    if has_command and dash_at == len(arguments):
        raise CommandError(NO_COMMAND, BAD_ARGUMENTS)
    own = arguments[:dash_at] if has_command else arguments
    is_line = invocation.given.command is _LINE
    if is_line and not (has_command or keys or own):
        raise CommandError("bad number of arguments", BAD_ARGUMENTS)
    if keys and own and not (is_line and has_command):
        raise CommandError(
            "bad number of arguments (found conflicting environment key)", BAD_ARGUMENTS
        )
    return WatchRequest(keys + own, arguments[dash_at:] if has_command else [])


def _begin(client: Client, invocation: CtlInvocation, keys: Sequence[str]) -> Watch:
    if not keys:
        raise CommandError("bad number of arguments", BAD_ARGUMENTS)
    is_prefix = invocation.switch("prefix")
    key, end = as_bytes(keys[0]), b""
    if len(keys) == 2:
        if is_prefix:
            raise CommandError("`range_end` and `--prefix` are mutually exclusive", BAD_ARGUMENTS)
        end = as_bytes(keys[1])
    if is_prefix:
        key, end = key_range(prefix=key)
    request = pb.WatchCreateRequest(
        key=key,
        range_end=end,
        start_revision=invocation.number("rev"),
        prev_kv=invocation.switch("prev-kv"),
        progress_notify=invocation.switch("progress-notify"),
    )
    return Watch(client.shell, request, is_plain=True)


# Output.


def _follow(
    output: ResultOutput, watch: Watch, command: Sequence[str], printing: threading.Lock
) -> None:
    """Print the events of a watch until it ends; hold the lock while printing."""
    with suppress(ClosedError):
        while True:
            try:
                changes = watch.changes()
            except ClosedError:
                raise
            except KvorumError as error:
                with printing:
                    _show_end(output, watch, error)
                return
            response = _response(changes)
            with printing:
                if not response.events:
                    output.line(f"progress notify: {response.header.revision}")
                _show(output, response, "")
                output.flush()
            if command:
                for event in response.events:
                    _run(command, response.header.revision, event)


def _show_end(output: ResultOutput, watch: Watch, error: KvorumError) -> None:
    refusal = watch.refusal
    if refusal is None or refusal.created:
        reason = error_text(error) if refusal is None else refusal.cancel_reason
        response = pb.WatchResponse(header=pb.ResponseHeader(), canceled=True)
        cancel_reason = ""
    elif refusal.compact_revision:
        reason, cancel_reason = COMPACTED.text, refusal.cancel_reason
        response = pb.WatchResponse(
            header=refusal.header, compact_revision=refusal.compact_revision, canceled=True
        )
    else:
        return
    output.flush()
    sys.stderr.write(f"watch was canceled ({reason})\n")
    sys.stderr.flush()
    _show(output, response, cancel_reason)
    output.flush()


def _show(output: ResultOutput, response: pb.WatchResponse, cancel_reason: str) -> None:
    def simple(response: pb.WatchResponse) -> None:
        for event in response.events:
            output.line(_kind(event))
            if event.HasField("prev_kv"):
                simple_kv(output, event.prev_kv)
            simple_kv(output, event.kv)

    def fields(response: pb.WatchResponse) -> None:
        output.header_fields(response.header)
        for event in response.events:
            output.line(f'"Type" : {_kind(event)}')
            if event.HasField("prev_kv"):
                kv_fields(output, "Prev", event.prev_kv)
            kv_fields(output, "", event.kv)

    def json(response: pb.WatchResponse) -> dict[str, object]:
        return {
            "Header": as_json(response.header),
            "Events": [as_json(each) for each in response.events] or None,
            "CompactRevision": response.compact_revision,
            "Canceled": response.canceled,
            "Created": response.created,
            "CancelReason": cancel_reason,
        }

    output.show(response, simple, fields=fields, json=json)


def _run(command: Sequence[str], revision: int, event: mvccpb.Event) -> None:
    environment = {
        **os.environ,
        "ETCD_WATCH_REVISION": str(revision),
        "ETCD_WATCH_EVENT_TYPE": quoted(_kind(event)),
        "ETCD_WATCH_KEY": quoted(event.kv.key),
        "ETCD_WATCH_VALUE": quoted(event.kv.value),
    }
    _, problem = run_command(command, environment)
    if problem:
        words = " ".join(quoted(as_bytes(word)) for word in command)
        sys.stderr.write(f"command [{words}] error ({problem})\n")
        raise SystemExit(1)


def _response(changes: Changes) -> pb.WatchResponse:
    """Return changes as the WatchResponse that carried them."""
    events = [
        mvccpb.Event(
            type=mvccpb.Event.PUT if each.is_put else mvccpb.Event.DELETE,
            kv=_message(each.kv),
            prev_kv=None if each.previous is None else _message(each.previous),
        )
        for each in changes.events
    ]
    return pb.WatchResponse(header=changes.header, events=events)


def _message(kv: KeyValue) -> mvccpb.KeyValue:
    return mvccpb.KeyValue(**kv._asdict())


def _kind(event: mvccpb.Event) -> str:
    return "DELETE" if event.type == mvccpb.Event.DELETE else "PUT"


# Interactive mode: several watches, requested line by line.


class _Failures:
    """Carries errors of other threads to the main thread, which waits for input.

    After the block, other threads print nothing any more.
    """

    def __init__(self) -> None:
        self._first: BaseException | None = None
        self.printing = threading.Lock()
        """Held while a thread prints lines that belong together."""
        self._wake_receiver, self._wake_sender = socket.socketpair()
        try:
            self._input: int | None = sys.stdin.fileno()
        except UnsupportedOperation:
            self._input = None

    def __enter__(self) -> "_Failures":
        return self

    def __exit__(self, *_: object) -> None:
        # Never release the lock: a thread that prints at exit could abort Python's shutdown.
        self.printing.acquire(timeout=PRINT_SECONDS_MAX)
        self._wake_receiver.close()
        self._wake_sender.close()

    def report(self, error: BaseException) -> None:
        self._first = self._first or error
        with suppress(OSError):
            # The socket is closed if the program is ending anyway.
            self._wake_sender.send(b"\0")

    def wait(self) -> None:
        """Return when there may be input; raise the first error of another thread."""
        if self._input is not None:
            select.select([self._input, self._wake_receiver.fileno()], [], [])
        if self._first is not None:
            raise self._first


def _interact(invocation: CtlInvocation, keys: list[str]) -> None:
    with invocation.client() as client, _Failures() as failures:
        output = invocation.output
        lines = InputLines(failures.wait)
        while (line := lines.next()) is not None:
            _run_input_line(line, keys, client, output, failures)
        raise CommandError("error reading watch request line: EOF", INVALID_INPUT)


def _run_input_line(
    line: str, keys: list[str], client: Client, output: ResultOutput, failures: _Failures
) -> None:
    try:
        words = split_words(line)
    except ValueError as error:
        raise CommandError(str(error), INVALID_INPUT) from None
    if not words:
        _refuse(f"Invalid command: {line} (watch and progress supported)")
    elif words[0] == "progress":
        with client.shell.turn():
            client.shell.watching.request_progress()
    elif words[0] != "watch":
        _refuse(f"Invalid command {line} (only support watch)")
    elif len(words) < 2 and not keys:
        _refuse(f"Invalid command {line} (command type or key is not provided)")
    else:
        if "--" in words and words.index("--") == len(words) - 1:
            raise CommandError(NO_COMMAND, BAD_ARGUMENTS)
        try:
            given = parse_flags(_LINE, words[1:])
        except ValueError as error:
            raise CommandError(str(error), BAD_ARGUMENTS) from None
        if given.is_help_asked:
            raise CommandError("pflag: help requested", BAD_ARGUMENTS)
        invocation = CtlInvocation(_LINE, given)
        asked = _parse_request(invocation, keys)
        try:
            watch = _begin(client, invocation, asked.keys)
        except CommandError as error:
            _refuse(f"Invalid command {line} ({error})")
            return
        with suppress(KvorumError):
            # Wait for the start, so that the next line, such as progress, includes this watch.
            watch.wait_started()
        threading.Thread(
            target=_follow_apart, args=(output, watch, asked.command, failures), daemon=True
        ).start()


def _follow_apart(
    output: ResultOutput, watch: Watch, command: Sequence[str], failures: _Failures
) -> None:
    try:
        _follow(output, watch, command, failures.printing)
    except BaseException as error:
        failures.report(error)


def _refuse(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
