"""`shell`: run typed command lines, with editing, completion and a history.

Every line is a command line without the tool's name. The global flags of the shell itself apply to
all lines. Without a terminal, the shell reads lines from the standard input.
"""

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from kvorum.api.durations import duration_text
from kvorum.client.errors import KvorumError
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError, UsageError
from kvorum.tools.cli.parsing import parse
from kvorum.tools.ctl.connecting import user_of
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.offering import Offering

HISTORY_LINES_MAX = 1000
KEYS_MAX = 1000
"""The most keys that the shell reads to complete one."""
KEYS_SECONDS_MAX = 1.0
SECRETS = ("--password", "--user", "--new-user-password", "--auth-jwt-token", "--dest-password")
"""The history omits lines with these flags, and lines about users: both may hold passwords."""


def shell(invocation: CtlInvocation) -> None:
    """Run typed command lines."""
    if invocation.arguments:
        raise CommandError("shell command takes no arguments", BAD_ARGUMENTS)
    passed = _passed(invocation)
    if not sys.stdin.isatty():
        code = 0
        for line in sys.stdin:
            code = run_line(invocation, passed, line)
        if code:
            raise SystemExit(code)
        return
    # Report mistakes in the environment now, not at the first line.
    invocation.configure()
    for line in _typed(invocation):
        if line.strip() in ("exit", "quit"):
            return
        try:
            run_line(invocation, passed, line)
        except KeyboardInterrupt:
            sys.stdout.write("\n")


def run_line(invocation: CtlInvocation, passed: dict[str, str], line: str) -> int:
    """Run a line; return its exit code."""
    from kvorum.tools.ctl.main import execute

    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        sys.stderr.write(f"Error: cannot read the line: {error}\n")
        return 1
    if not words:
        return 0
    own: set[str] = set()
    with suppress(UsageError):
        given = parse(invocation.root, words)
        own = given.changed
        if given.command is invocation.given.command:
            sys.stderr.write("Error: this is a shell already\n")
            return 1
    before = [f"--{name}={text}" for name, text in passed.items() if name not in own]
    try:
        return execute([*before, *words])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception:
        # A bug in one command ends only that command.
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()


def _passed(invocation: CtlInvocation) -> dict[str, str]:
    """Return the given global flags as text; prompt once for a missing password."""
    found: dict[str, str] = {}
    for flag in invocation.root.passed_on:
        value = invocation.given.values[flag.name]
        if flag.name not in invocation.given.changed:
            continue
        if isinstance(value, bool):
            found[flag.name] = str(value).lower()
        elif isinstance(value, list):
            found[flag.name] = ",".join(value)
        elif flag.kind == "duration":
            assert isinstance(value, int)
            found[flag.name] = duration_text(value)
        else:
            found[flag.name] = str(value)
    if "user" in found:
        name, password = user_of(found["user"], found.get("password", ""), "Password: ")
        asked = {"user": name, "password": password}
        found |= asked
        invocation.given.values |= asked
    return found


def _typed(invocation: CtlInvocation) -> Iterator[str]:
    """Yield the lines that the user types."""
    import readline

    history = _history_path()
    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_auto_history(False)
    readline.set_history_length(HISTORY_LINES_MAX)
    # Only blanks separate words: a key, or a flag with its value, is one word.
    readline.set_completer_delims(" \t\n")
    readline.set_completer(_Completer(invocation).complete)
    readline.parse_and_bind("tab: complete")
    while True:
        try:
            line = input("kvorumctl> ")
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        except EOFError:
            sys.stdout.write("\n")
            return
        if line.strip() and not _is_secret(line):
            readline.add_history(line)
            _save(readline.write_history_file, history)
        yield line


def _is_secret(line: str) -> bool:
    words = line.split()
    return bool({"user", "passwd"} & set(words)) or any(each in line for each in SECRETS)


def _history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "kvorumctl" / "history"


def _save(write: Callable[[Path], None], path: Path) -> None:
    """Save the history, readable by the user alone; ignore errors of the disk."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        write(path)


class _Completer:
    """Completes typed words, with keys from the cluster."""

    def __init__(self, invocation: CtlInvocation) -> None:
        self._invocation = invocation
        self._offering = Offering(invocation.root)
        self._client: Client | None = None
        self._found: Sequence[str] = ()

    def complete(self, word: str, number: int) -> str | None:
        """Return the completion with this number; readline asks for one after the other."""
        import readline

        if number == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()]
            # A failed completion must not disturb the user who is typing.
            self._found = ()
            with suppress(KvorumError, CommandError, ValueError, OSError):
                self._found = self._offering.list_completions(before.split(), word, self._keys)
        return self._found[number] if number < len(self._found) else None

    def _keys(self, word: str) -> list[str]:
        """Return the keys that start with `word` and need no quotes."""
        if self._client is None:
            self._client = self._invocation.client()
        found = self._client.read(
            prefix=word, keys_only=True, limit=KEYS_MAX, timeout=KEYS_SECONDS_MAX
        )
        keys = [kv.key.decode("utf-8", "replace") for kv in found.kvs]
        return [key for key in keys if key.isprintable() and shlex.quote(key) == key]
