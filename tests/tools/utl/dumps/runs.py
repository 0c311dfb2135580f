"""Dumps as users run them, and the tools they are held to."""

import io
import json
import re
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvorum.tools.cli.text import printable
from kvorum.tools.utl.main import run
from tests.waiting import WAIT_SECONDS_MAX
from tools import etcds

Words = list[str | Path]

_SECRETS = re.compile(r'\b(password|hashedPassword|simple_token):"[^"]*"')


class Outcome(NamedTuple):
    """What a command left: its exit code, what it printed, what it said beside that."""

    code: int
    output: str
    errors: str


def dump(*words: str | Path) -> Outcome:
    """Run `kvorumutl dump` in this process."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape")
    errors = io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = run(["dump", *map(str, words)])
    output.flush()
    assert isinstance(output.buffer, io.BytesIO)
    shown = output.buffer.getvalue().decode("utf-8", "surrogateescape")
    return Outcome(code, shown, errors.getvalue())


def dumped(*words: str | Path) -> str:
    """Return the output of a dump that succeeds."""
    outcome = dump(*words)
    assert outcome.code == 0, outcome
    return outcome.output


def objects(*words: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a dump that succeeds, as JSON."""
    return parsed(dumped(*words, "-w", "json"))


def parsed(output: str) -> list[dict[str, Any]]:
    """Return lines of JSON."""
    return [json.loads(line) for line in output.splitlines()]


def tool(name: str, *words: str | Path) -> Outcome:
    """Run one of etcd's dump tools; skips the test where there is none."""
    path = etcds.BUILT / name
    if not has_tool(name):
        pytest.skip(f"no {name} to compare with: 'make oracle' builds it where there is Go")
    done = subprocess.run(
        [str(path), *map(str, words)], capture_output=True, timeout=WAIT_SECONDS_MAX, check=False
    )
    # Go may know characters as printable that this Python has yet to hear of.
    output = printable(_text(done.stdout), kept="\n\t")
    return Outcome(done.returncode, output, _text(done.stderr))


def has_tool(name: str) -> bool:
    """Return whether there is this one of etcd's dump tools."""
    return (etcds.BUILT / name).exists()


def without_secrets(output: str) -> str:
    """Return what etcd's tool prints, without what ours never shows."""
    return _SECRETS.sub(r'\1:"<value removed>"', output)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
