"""Command lines that need no server: how words become commands and flags, beside etcdctl's."""

import subprocess
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.tools.ctl.commands import GLOBAL_FLAGS, ROOT
from tests.etcd import binary, is_target
from tests.tools.ctl.duel import Outcome, run_here

pytestmark = pytest.mark.skipif(
    not is_target(), reason="etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3"
)


def etcdctl(words: list[str], env: Mapping[str, str] | None = None) -> Outcome:
    done = subprocess.run(
        [binary("etcdctl"), *words], capture_output=True, env=dict(env or {}), timeout=60
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def first_words(outcome: Outcome) -> tuple[int, bytes, bool]:
    """Return what scripts may read: the code, the error above the usage, whether help was shown."""
    error = outcome.err.replace(b"kvorumctl", b"etcdctl").partition(b"Usage:")[0]
    return outcome.code, error, b"Usage:" in outcome.out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nosuch"],
        ["gett"],
        ["ge", "--help"],
        ["mem"],
        ["me"],
        ["m"],
        ["member", "nosuch"],
        ["member", "li", "--help"],
        ["member", "--nosuch"],
        ["--nosuch"],
        ["--nosuch", "get"],
        ["--hex", "nosuch"],
        ["--endpoints", "get"],
        ["--endpoints", "a", "nosuch"],
        ["-w", "json", "nosuch"],
        ["-w"],
        ["-wjson", "--help"],
        ["-h"],
        ["get", "-h"],
        ["help", "get"],
        ["help", "nosuch"],
        ["help", "member", "add"],
        ["--", "nosuch"],
        ["get", "--limit"],
        ["get", "--limit", "9223372036854775808", "a"],
        ["get", "--limit=", "a"],
        ["get", "--prefix=maybe", "a"],
        ["get", "--=x", "a"],
        ["get", "---x", "a"],
        ["get", "-x", "a"],
        ["get", "-xw", "a"],
        ["get", "--command-timeout=5", "a"],
        ["get", "--command-timeout=", "a"],
        ["get", "--dial-timeout=1x", "a"],
        ["get", "--pre", "a"],
        ["watch", "-iz"],
        ["elect", "-l=x", "a"],
        ["make-mirror", "--max-txn-ops=-1", "a"],
        ["make-mirror", "--max-txn-ops=x", "a"],
        ["completion"],
        ["completion", "nosuch"],
        ["completion", "bash", "zsh"],
        ["user", "add", "--interactive", "false", "--nosuch"],
        ["version", "extra"],
        ["options", "extra"],
        ["lock", "name", "sh", "-c", "true"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_reported_in_the_same_words(words: list[str]) -> None:
    assert first_words(run_here(words)) == first_words(etcdctl(words))


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["get"], {"ETCDCTL_ENDPOINTS": "127.0.0.1:1"}),
        (["completion"], {"ETCDCTL_ENDPOINTS": "127.0.0.1:1", "ETCDCTL_NOSUCH": "1"}),
        (["--hex", "completion"], {"ETCDCTL_HEX": "true"}),
        (
            ["get", "a", "--command-timeout=1ms"],
            {"ETCDCTL_ENDPOINTS": "127.0.0.1:1", "ETCDCTL_WRITE_OUT": "nonsense"},
        ),
        (["get", "a", "--command-timeout=1ms"], {"ETCDCTL_KEEPALIVE_TIME": "nonsense"}),
    ],
)
def test_variables_stand_for_flags(words: list[str], env: dict[str, str]) -> None:
    ours, theirs = run_here(words, env=env), etcdctl(words, env)
    assert first_words(_without_log(ours)) == first_words(_without_log(theirs))


def test_a_variable_and_its_flag_are_refused() -> None:
    words, env = ["get", "a", "--endpoints=127.0.0.1:1"], {"ETCDCTL_ENDPOINTS": "127.0.0.1:2"}
    ours, theirs = run_here(words, env=env), etcdctl(words, env)
    assert (ours.code, ours.out) == (theirs.code, theirs.out) == (1, b"")
    for outcome in (ours, theirs):
        assert b"is shadowed by corresponding command-line flag" in outcome.err


def test_unknown_variables_are_reported() -> None:
    words, env = ["get", "a", "--command-timeout=1ms"], {"ETCDCTL_API": "3"}
    for outcome in (run_here(words, env=env), etcdctl(words, env)):
        assert b"unrecognized environment variable" in outcome.err
        assert b"ETCDCTL_API=3" in outcome.err


def test_our_own_variables_win() -> None:
    env = {"ETCDCTL_WRITE_OUT": "simple", "KVORUMCTL_WRITE_OUT": "nonsense"}
    ours = run_here(["get", "a", "--command-timeout=1ms"], env=env)
    assert (ours.code, ours.err) == (4, b"Error: unsupported output format\n")


NAMES = [flag.name for flag in GLOBAL_FLAGS] + ["nosuch", "help", "", "-"]
SHORTS = [flag.short for flag in GLOBAL_FLAGS if flag.short] + ["x", "h", "="]
VALUES = ["", "1", "true", "json", "5s", "-", "--", "a,b", "x=y", "ü"]
PIECES = st.one_of(
    st.builds("--{}".format, st.sampled_from(NAMES)),
    st.builds("--{}={}".format, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.lists(st.sampled_from(SHORTS), max_size=3).map(lambda letters: "-" + "".join(letters)),
    # `true` is close to `tree`, a command of ours alone, which we would suggest.
    st.sampled_from([*(set(VALUES) - {"true"}), "version", "vers", "ve", "get", "member"]),
)


@example(["-h="])
@example(["-w="])
@given(st.lists(PIECES, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_words_are_understood_alike(words: list[str]) -> None:
    # `version` asks no server, so whatever is understood ends at once.
    line = ["version", *words] if "get" in words else [*words, "version"]
    ours, theirs = run_here(line), etcdctl(line)
    assert first_words(ours) == first_words(theirs)


def test_every_command_of_etcdctl_is_there_with_its_flags() -> None:
    for path, flags in _commands_of_etcdctl():
        command = ROOT
        for word in path:
            found = next((each for each in command.children if each.name == word), None)
            assert found is not None, f"{' '.join(path)} is missing"
            command = found
        ours = {flag.name for flag in command.all_flags()}
        assert flags <= ours | {"help"}, f"{' '.join(path)} lacks {flags - ours}"


def _commands_of_etcdctl() -> list[tuple[list[str], set[str]]]:
    """Ask etcdctl's help for all of its commands and their flags."""
    found: list[tuple[list[str], set[str]]] = []
    left: list[list[str]] = [[]]
    while left:
        path = left.pop()
        told, _, flags = etcdctl([*path, "--help"]).out.decode().partition("\nFlags:")
        words = (word for line in flags.splitlines() for word in line.split()[:2])
        found.append((path, {word[2:] for word in words if word.startswith("--")}))
        # What `help` is asked for helps with everything else.
        if " [command]\n" in told and path != ["help"]:
            rows = told.partition(" [command]\n")[2].splitlines()
            names = [row.split()[0] for row in rows if row[:2] == "  " and row[2:3].isalpha()]
            # Examples are lines of the tool itself.
            left.extend([*path, name] for name in names if name != "etcdctl")
    return found


def _without_log(outcome: Outcome) -> Outcome:
    lines = outcome.err.replace(b"kvorumctl", b"etcdctl").splitlines()
    kept = [line for line in lines if not line.startswith((b'{"level"', b"Hint: "))]
    return outcome._replace(out=outcome.out.replace(b"kvorumctl", b"etcdctl"), err=b"\n".join(kept))
