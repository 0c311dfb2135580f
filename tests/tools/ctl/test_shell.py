"""`shell`: lines are command lines, completed and remembered."""

import sys
from pathlib import Path

import pytest

from kvorum.tools.ctl.commands import ROOT
from kvorum.tools.ctl.offering import Offering
from tests.tools.ctl.duel import PATIENCE
from tests.tools.ctl.store import Store
from tests.tools.ctl.terminal import Terminal, terminal_of

PROMPT = "kvorumctl> "
PATIENT = "from kvorum.tools.ctl import main, shell; shell.KEYS_SECONDS_MAX = 60.0; main.main()"
"""The tool, which waits for keys to offer as long as a busy server needs."""


def prompted(terminal: Terminal) -> None:
    terminal.wait_for(PROMPT)


def test_a_person_types_lines(store: Store, tmp_path: Path) -> None:
    store.client.put("sh/first/key", "found it")
    history = tmp_path / "kvorumctl" / "history"
    env = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PATIENT, f"--endpoints={store.address}", *PATIENCE, "shell"]
    with terminal_of(command, env) as terminal:
        prompted(terminal)
        # A command, then a key part by part.
        terminal.type("ge\tsh/f\tk\t\r")
        terminal.wait_for(r"sh/first/key\r\nfound it")
        prompted(terminal)
        terminal.type("put sh/second typed --hex\r")
        terminal.wait_for("OK")
        prompted(terminal)
        terminal.type("options --user=name:password\r")
        terminal.wait_for("can be passed to any command")
        prompted(terminal)
        terminal.type("nonsense\r")
        terminal.wait_for('unknown command "nonsense"')
        prompted(terminal)
        # What is interrupted ends, and the shell goes on.
        terminal.type("get never typ")
        terminal.wait_for("typ")
        terminal.interrupt()
        prompted(terminal)
        terminal.type("top --interval=1h -w json\r")
        terminal.wait_for(r'"members"')
        terminal.interrupt()
        prompted(terminal)
        terminal.type("exit\r")
        assert terminal.end() == 0
    assert store.client.get("sh/second") is not None
    lines = history.read_text().splitlines()
    assert "put sh/second typed --hex" in lines
    assert not [line for line in lines if "password" in line]
    assert history.stat().st_mode & 0o077 == 0

    with terminal_of(command, env) as terminal:
        prompted(terminal)
        # What was typed before is there again; the end of the input ends the shell.
        terminal.type("\x12second\r")
        terminal.wait_for("OK")
        prompted(terminal)
        terminal.type("\x04")
        assert terminal.end() == 0


def test_lines_come_from_a_pipe_as_well(store: Store) -> None:
    done = store.run(
        *("--command-timeout=30s", "--hex", "shell"),
        stdin=b"put sh/pipe 'a b'\n\n# nothing\nget sh/pipe\nget sh/pipe --hex=false\n",
    )
    shown = b"".join(b"\\x%02x" % byte for byte in b"sh/pipe")
    assert done.out == b"OK\n" + shown + b"\n\\x61\\x20\\x62\nsh/pipe\na b\n"
    done = store.run("shell", stdin=b"get\n", code=128)
    assert b"needs one argument" in done.err
    done = store.run("shell", stdin=b'shell\nget "x\nget sh/none\n')
    assert b"a shell already" in done.err
    assert b"No closing quotation" in done.err
    assert b"no arguments" in store.run("shell", "x", code=128).err


def test_endpoints_of_a_line_stand_in_place_of_those_of_the_shell(store: Store) -> None:
    line = f"--endpoints={store.address} put sh/where here\n".encode()
    done = store.run("--endpoints=127.0.0.1:1", "shell", stdin=line)
    assert done.out == b"OK\n"


@pytest.mark.parametrize(
    ("before", "word", "offers"),
    [
        ("", "his", ["history "]),
        ("lease", "gr", ["grant "]),
        ("--hex lease", "gr", ["grant "]),
        ("--endpoints lease get", "", ["a/", "b "]),
        ("get", "a/", ["a/1 ", "a/2/"]),
        ("get a", "--sort", ["--sort-by "]),
        ("get a --sort-by", "VE", ["VERSION "]),
        ("get", "--sort-by=VE", ["--sort-by=VERSION "]),
        ("-w", "p", ["protobuf "]),
        ("get", "--endpo", ["--endpoints "]),
        ("lease grant", "", []),
    ],
)
def test_what_is_offered(before: str, word: str, offers: list[str]) -> None:
    keys = ["a/1", "a/2/x", "a/2/y", "b"]

    def beginning(text: str) -> list[str]:
        return [key for key in keys if key.startswith(text)]

    assert Offering(ROOT).list_completions(before.split(), word, beginning) == offers
