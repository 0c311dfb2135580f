"""`watch` beside etcdctl's."""

import signal
from pathlib import Path

import pytest

from tests.etcd import is_target
from tests.tools.ctl.duel import KINDS, Conversation, Duel, duel_of

FORMATS = ("simple", "fields", "json", "protobuf")
END = rb'"end"\n"Lease.*\n|ZW5k.*\n|x64\n|\nend\n|\x03end'
"""The end of the last event, in all formats."""
at_one_kind = pytest.mark.parametrize("duel", ["kvorum"], indirect=True)
"""For what the server has no part in."""


def _until_end(tool: Conversation) -> None:
    """Let something happen once the watch has begun; stop when it was shown."""
    tool.expect(rb'"1"\n|MQ==|x31|[\n\x01]1')
    tool.ctl("put", "w/x", "end")
    tool.expect(END)
    tool.signal(signal.SIGINT)


def _revision(duel: Duel) -> int:
    """Write a key twice and delete it; return the revision of the first."""
    found = duel.compare("put", "w/a", "1", "-w", "fields").out
    duel.compare("put", "w/a", "2\x01\xff")
    duel.compare("del", "w/a")
    return int(found.split(b'"Revision" : ')[1].split()[0])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hexadecimal", ["--hex=false", "--hex"])
def test_events_look_the_same(duel: Duel, form: str, hexadecimal: str) -> None:
    since = _revision(duel)
    options = ("--prefix", "--prev-kv", f"--rev={since}", "-w", form, hexadecimal)

    def change(data: bytes) -> bytes:
        # Messages in protobuf have the ids of their cluster.
        return b"" if form == "protobuf" else data

    duel.converse("watch", "w/", *options, talk=_until_end, change=change)
    duel.compare("del", "w/x")


@pytest.mark.parametrize("form", [*FORMATS, "table", "nonsense"])
def test_the_end_of_a_watch_looks_the_same(duel: Duel, form: str) -> None:
    since = _revision(duel)
    duel.compare("compaction", str(since + 1))

    def change(data: bytes) -> bytes:
        return data if form != "protobuf" or data[:1] in (b"w", b"E") else b""

    duel.compare("watch", "w/a", "--rev", str(since), "-w", form, change=change)
    duel.compare("watch", "w/a", "--rev", "-1", "-w", form, change=change)


@at_one_kind
@pytest.mark.parametrize(
    ("words", "env"),
    [
        ((), {}),
        (("--rev", "2"), {}),
        (("a", "--"), {}),
        (("--", "echo"), {}),
        (("--rev=x", "a"), {}),
        (("--nosuch", "a"), {}),
        (("a", "b", "--prefix"), {}),
        (("a", "-w", "nonsense"), {}),
        (("a",), {"ETCDCTL_WATCH_KEY": "k"}),
        (("a", "--", "echo"), {"ETCDCTL_WATCH_KEY": "k"}),
        (("--",), {"ETCDCTL_WATCH_KEY": "k"}),
        ((), {"ETCDCTL_WATCH_RANGE_END": 'x"'}),
        (("a",), {"ETCDCTL_WATCH_RANGE_END": "x"}),
        (("--prefix",), {"ETCDCTL_WATCH_KEY": "k", "ETCDCTL_WATCH_RANGE_END": "x"}),
        (("-i",), {"ETCDCTL_WATCH_RANGE_END": "x"}),
    ],
)
def test_what_is_refused(duel: Duel, words: tuple[str, ...], env: dict[str, str]) -> None:
    duel.compare("watch", *words, env=env, change=_without_usage)


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("w/", "w0"), {}),
        (("w/a", "w0", "more"), {}),
        (("w/a", "--", "echo", "1"), {}),
        ((), {"ETCDCTL_WATCH_KEY": "w/a"}),
        ((), {"ETCDCTL_WATCH_KEY": "w/", "ETCDCTL_WATCH_RANGE_END": "w0"}),
        (("--", "echo", "1"), {"ETCDCTL_WATCH_KEY": "w/a"}),
        (("--prefix", ""), {}),
        (("", "x"), {}),
    ],
)
def test_what_is_watched(duel: Duel, words: tuple[str, ...], env: dict[str, str]) -> None:
    since = _revision(duel)

    def talk(tool: Conversation) -> None:
        tool.expect(
            rb"PUT\nw/a\n1\n(.*\n)*DELETE\nw/a\n\n" + rb"1\n" * (3 if "echo" in words else 0)
        )
        tool.ctl("put", "w/a", "end")
        tool.expect(rb"end\n" + rb"1\n" * ("echo" in words))
        tool.signal(signal.SIGINT)

    duel.converse("watch", f"--rev={since}", *words, env=env, talk=talk)


SHOW = 'echo "$ETCD_WATCH_REVISION $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE"; cat'


def test_a_command_is_run_for_each_event(duel: Duel) -> None:
    since = _revision(duel)

    def talk(tool: Conversation) -> None:
        tool.expect(rb'"DELETE" "w/a" ""\n')
        tool.ctl("put", "w/x", "end")
        tool.expect(rb'"w/x" "end"\n')
        tool.signal(signal.SIGINT)

    words = ("watch", "--prefix", "w/", f"--rev={since}", "--", "sh", "-c", SHOW)
    duel.converse(*words, talk=talk, env={"ETCD_WATCH_KEY": "inherited"})


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "exit 3"),
        ("sh", "-c", "kill -9 $$"),
        ("nosuch", 'a "b"'),
        ("/no/such",),
        ("/etc/passwd",),
        ("",),
        ("false",),
    ],
)
def test_a_command_that_fails_ends_the_watch(duel: Duel, command: tuple[str, ...]) -> None:
    since = _revision(duel)
    words = ("watch", "w/a", f"--rev={since}", "--", *command)
    assert duel.converse(*words, talk=lambda _: None).code == 1


@pytest.mark.parametrize("has_terminal", [False, True])
def test_several_watches_are_asked_for_line_by_line(duel: Duel, has_terminal: bool) -> None:
    since = _revision(duel)

    def talk(tool: Conversation) -> None:
        tool.send(b"watch w/a --rev %d\n" % since)
        tool.expect(rb"DELETE\r?\nw/a\r?\n\r?\n")
        tool.send(b"watch 'other key' --prev-kv -- echo told\n")
        tool.send(b"nonsense\n")
        tool.expect(b"only support watch", in_err=True)
        tool.ctl("put", "other key", "end")
        tool.expect(rb"PUT\r?\nother key\r?\nend\r?\ntold\r?\n")
        tool.send(b"progress\n")
        tool.expect(rb"progress notify: \d+\r?\nprogress notify: \d+\r?\n")
        tool.ctl("put", "w/a", "end")
        tool.expect(rb"PUT\r?\nw/a\r?\nend\r?\n")
        tool.ctl("del", "other key")
        tool.expect(rb"DELETE\r?\n(.*\n)*told\r?\n")
        tool.send(b"\x04") if has_terminal else tool.close_input()

    def change(data: bytes) -> bytes:
        # Ours lets no value steer the terminal.
        return data.replace(rb"\x01", b"\x01")

    words = ("watch", "-i")
    assert duel.converse(*words, talk=talk, has_terminal=has_terminal, change=change).code == 3


@pytest.mark.parametrize("form", ["json", "fields"])
def test_progress_looks_the_same(duel: Duel, form: str) -> None:
    _revision(duel)

    def talk(tool: Conversation) -> None:
        tool.send(b"watch w/a\n")
        tool.send(b"progress\n")
        tool.expect(rb'progress notify: \d+\n(\{.*\n|(".*\n){3}"Raft.*\n)')

    duel.converse("watch", "-i", "-w", form, talk=talk)


LINES = (
    b"",
    b"\n",
    b"foo\n",
    b"watch\n",
    b"watch w/a",
    b"progress\n",
    b"watch --nosuch\n",
    b"watch a -w json\n",
    b"watch a b --prefix\n",
    b"watch w/a -- \n",
    b"watch --nosuch -- \n",
    b"watch -- echo\n",
    b"watch w/a --rev x\n",
    b'watch "\\q"\n',
    b"watch w/a --help\n",
    b"watch --prefix\n",
    b"  foo bar\n",
)


@at_one_kind
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("env", [{}, {"ETCDCTL_WATCH_KEY": "k"}])
def test_lines_that_are_refused(duel: Duel, line: bytes, env: dict[str, str]) -> None:
    duel.compare("watch", "-i", stdin=line, env=env)


def test_a_format_that_events_do_not_have_ends_the_program(duel: Duel) -> None:
    since = _revision(duel)

    def talk(tool: Conversation) -> None:
        tool.send(b"watch w/a --rev %d\n" % since)
        tool.expect(b"not supported", in_err=True)

    assert duel.converse("watch", "-i", "-w", "table", talk=talk).code == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_without_permission_to_read_gets_an_error(kind: str, tmp_path: Path) -> None:
    if not is_target():
        pytest.skip("etcdctl 3.5.1 writes other words; 'make oracle' builds 3.7.3")
    with duel_of(kind, tmp_path, "--bcrypt-cost=4") as duel:
        for words in (
            "user add root:r",
            "user add u:u",
            "role add r",
            "role grant-permission r read a",
            "user grant-role u r",
            "auth enable",
        ):
            for address in (duel.theirs, duel.ours):
                duel.etcdctl_at(address, *words.split())
        for words in (
            "watch b --user u:u",
            "watch b --user u:u -w json",
            "watch b --user u:u -w fields",
            "watch a --prefix --user u:u -w json",
            "watch a",
            "watch a --user u:wrong",
            "lease keep-alive 12 --user u:wrong",
            "lease keep-alive 12 --once",
            "txn --user u:wrong",
            "lock b",
            "lock b --user u:u",
            "elect b x --user u:u",
            "elect -l b --user u:u",
        ):
            duel.compare(*words.split(), stdin=b"bad\n")


def _without_usage(data: bytes) -> bytes:
    """Leave the help out that follows an error: it is in our own words."""
    return data.partition(b"Usage:")[0]
