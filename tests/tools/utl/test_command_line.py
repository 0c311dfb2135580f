"""Command lines that need no files: how words become commands and flags, beside etcdutl's."""

import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.tools.cli.completion import script
from kvorum.tools.utl.commands import GLOBAL_FLAGS, ROOT
from tests.etcd import is_target
from tests.tools.ctl.duel import Outcome
from tests.tools.utl.duel import Duel, errors_of

pytestmark = pytest.mark.skipif(
    not is_target(), reason="etcdutl 3.5.1 writes other words; 'make oracle' builds 3.7.3"
)


@pytest.fixture(scope="module")
def duel(tmp_path_factory: pytest.TempPathFactory) -> Duel:
    return Duel(tmp_path_factory.mktemp("duel"))


def seen(outcome: Outcome) -> tuple[int, list[bytes], bool, bool]:
    """Return what scripts may read: the code, the errors, and where a usage was shown."""
    return (outcome.code, errors_of(outcome), b"Usage:" in outcome.out, b"Usage:" in outcome.err)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nosuch"],
        ["snapshoot"],
        ["snap"],
        ["s"],
        ["h"],
        ["he"],
        ["snapshot", "nosuch"],
        ["snapshot", "st", "--help"],
        ["snapshot", "--nosuch"],
        ["snapshot", "status"],
        ["snapshot", "status", "a", "b"],
        ["snapshot", "status", "-w"],
        ["snapshot", "status", "a", "-w", "nosuch"],
        ["snapshot", "status", "a", "--data-dir", "b"],
        ["snapshot", "restore"],
        ["snapshot", "restore", "a", "b"],
        ["snapshot", "restore", "a", "--bump-revision", "1"],
        ["snapshot", "restore", "a", "--bump-revision", "-1"],
        ["snapshot", "restore", "a", "--bump-revision", "x"],
        ["snapshot", "restore", "a", "--mark-compacted"],
        ["snapshot", "restore", "a", "--mark-compacted=maybe"],
        ["snapshot", "restore", "a", "--initial-memory-map-size=-1"],
        ["snapshot", "restore", "a", "-w", "nosuch"],
        ["snapshot", "restore", "a", "--data-dir", ""],
        ["snapshot", "restore", "a", "--name", "other"],
        ["snapshot", "restore", "a", "--name", ""],
        ["hashkv"],
        ["hashkv", "a", "b"],
        ["hashkv", "a", "-w", "nosuch"],
        ["hashkv", "a", "--rev", "x"],
        ["hashkv", "a", "--rev", "9223372036854775808"],
        ["defrag"],
        ["defrag", "extra"],
        ["defrag", "--data-dir"],
        ["defrag", "--data-dir", ""],
        ["defrag", "--data-dir", "nosuch"],
        ["defrag", "--data-dir", "nosuch", "extra", "-w", "nosuch"],
        ["defr", "--data-dir", "nosuch"],
        ["migrate"],
        ["migrate", "--force"],
        ["migrate", "--data-dir", "a"],
        ["migrate", "--target-version", "3.6"],
        ["migrate", "--data-dir", "a", "--target-version", ""],
        ["migrate", "--data-dir", "a", "--target-version", "3"],
        ["migrate", "--data-dir", "a", "--target-version", "3.6.0"],
        ["migrate", "--data-dir", "a", "--target-version", "3.4"],
        ["migrate", "--data-dir", "a", "--target-version", "2.9"],
        ["migrate", "--data-dir", "a", "--target-version", "3.6"],
        ["migrate", "--data-dir", "a", "--target-version", "9.0"],
        ["version", "extra"],
        ["completion"],
        ["completion", "nosuch"],
        ["completion", "bash", "zsh"],
        ["completion", "-h"],
        ["help"],
        ["help", "snapshot", "restore"],
        ["help", "nosuch"],
        ["--timeout"],
        ["--timeout", "x", "version"],
        ["--timeout=5", "version"],
        ["--timeout=0", "version"],
        ["-wjson", "version"],
        ["--nosuch", "version"],
        ["-x", "version"],
        ["--", "version"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_cannot_be_done_is_reported_in_the_same_words(duel: Duel, words: list[str]) -> None:
    theirs, ours = duel.both(*words)
    assert seen(ours) == seen(theirs)


@pytest.mark.parametrize("text", ["x.y", "3.x", ".", "3.", ".6", "03.6", "3.-1", "3.6-rc"])
def test_versions_that_are_none_are_refused(duel: Duel, text: str) -> None:
    theirs, ours = duel.both("migrate", "--data-dir", "a", f"--target-version={text}")
    assert ours.code == theirs.code
    # Why it cannot be parsed is told in words of our own.
    (wanted,), (got,) = errors_of(theirs), errors_of(ours)
    assert got.partition(b": ")[2].split(b":")[0] == wanted.partition(b": ")[2].split(b":")[0]


# Not `help`: etcdutl takes the word behind it for its value if it stands before the command.
NAMES = [flag.name for flag in GLOBAL_FLAGS] + ["nosuch", "", "-"]
VALUES = ["", "1", "true", "json", "5s", "-", "--", "x=y", "ü"]
PIECES = st.one_of(
    st.builds("--{}".format, st.sampled_from(NAMES)),
    st.builds("--{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.lists(st.sampled_from(["w", "x", "="]), max_size=3).map(lambda each: "-" + "".join(each)),
    st.sampled_from([*VALUES, "version", "ver", "snapshot"]),
)  # fmt: skip


@given(st.lists(PIECES, max_size=5))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_words_are_understood_alike(duel: Duel, words: list[str]) -> None:
    theirs, ours = duel.both(*words, "version")
    assert seen(ours) == seen(theirs)


def test_every_command_of_etcdutl_is_there_with_its_flags(duel: Duel) -> None:
    left: list[list[str]] = [[]]
    count = 0
    while left:
        path = left.pop()
        theirs, _ = duel.both(*path, "--help")
        told, _, flags = theirs.out.decode().partition("Flags:\n")
        command = ROOT
        for word in path:
            (command,) = (each for each in command.children if each.name == word)
        names = set(re.findall(r"--([a-z-]+)", flags))
        ours = {flag.name for flag in command.all_flags()}
        assert names <= ours | {"help"}, path
        rows = told.partition("Available Commands:\n")[2].splitlines()
        known = {row.split()[0] for row in rows if row.startswith("  ")}
        left.extend([*path, name] for name in known)
        # What is short for a command of etcdutl stays so.
        assert all(each.is_exact for each in command.children if each.name not in known)
        count += 1
    assert count > 8


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["de"], ["defrag"]),
        (["snapshot", "s"], ["save", "status"]),
        (["--timeout", "1s", "mig"], ["migrate"]),
        (["migrate", "--target"], ["--target-version"]),
        (["hashkv", "-w", "j"], ["json"]),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], offers: list[str]) -> None:
    text = script(ROOT, "bash") + (
        'COMP_WORDS=(kvorumutl "$@"); COMP_CWORD=$#; _kvorumutl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", text, "bash", *words], capture_output=True, text=True, check=True
    )
    assert (sorted(done.stdout.split()), done.stderr) == (offers, "")
