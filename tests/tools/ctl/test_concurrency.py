"""`lock` and `elect` beside etcdctl's."""

import os
import re
import signal
import socket
import sys

import pytest

from kvorum.client.sync.client import Client
from tests.tools.ctl.duel import Conversation, Duel
from tests.tools.ctl.processes import Program
from tests.waiting import WAIT_SECONDS_MAX

SIGNALS = (signal.SIGINT, signal.SIGTERM)
FORMATS = ("simple", "fields", "json", "table", "nonsense")
at_one_kind = pytest.mark.parametrize("duel", ["kvorum"], indirect=True)
"""For what the server has no part in."""


def _plain(data: bytes) -> bytes:
    """Replace the key, which is named for a lease, where it is base64."""
    return re.sub(rb'"key":"[^"]*"', b'"key":"<key>"', _without_usage(data))


def _clear(duel: Duel, prefix: str, form: str) -> None:
    """Delete what etcdctl leaves to its lease, where it cannot show what it holds."""
    if form == "table":
        duel.etcdctl_at(duel.theirs, "del", "--prefix", prefix)


def _waits(tool: Conversation, name: str) -> str:
    """Wait until the tool has a place in the queue; return its lease."""
    with Client(tool.address) as client, client.watch(prefix=f"{name}/", revision=1) as events:
        for event in events:
            if event.is_put and event.kv.lease and client.get(event.kv.key) is not None:
                return f"{event.kv.lease:x}"
    raise AssertionError("the watch has ended")


@pytest.mark.parametrize("form", FORMATS)
def test_a_lock_is_held_until_a_signal_comes(duel: Duel, form: str) -> None:
    def talk(tool: Conversation) -> None:
        if form in ("simple", "fields", "json"):
            tool.expect(rb"held/[0-9a-f]+\n\n|Count.*\n|\}\n")
            tool.signal(signal.SIGINT)

    duel.converse("lock", "held", "-w", form, talk=talk, change=_plain)
    _clear(duel, "held/", form)
    duel.compare("get", "--prefix", "held/", "--keys-only")


WAITING = "import sys; from kvorum.tools.ctl.main import main; main()"
IMPORTING = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "kvorum.client.core":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""
"""The same, interrupted while it loads the client."""


@pytest.mark.parametrize("words", [("lock", "early"), ("elect", "early", "me")])
@pytest.mark.parametrize("moment", ["while it loads", "before it is answered"])
def test_an_interruption_before_there_is_a_session_is_reported(
    words: tuple[str, ...], moment: str
) -> None:
    is_loading = moment == "while it loads"
    program = IMPORTING + WAITING if is_loading else WAITING
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_SECONDS_MAX)
        host, port = server.getsockname()
        tool = Program(
            [sys.executable, "-c", program, f"--endpoints={host}:{port}", *words], os.environ
        )
        try:
            if not is_loading:
                connection, _ = server.accept()
                connection.settimeout(WAIT_SECONDS_MAX)
                with connection:
                    # The grant of the lease: from then on it waits for an answer.
                    received = b""
                    while b"LeaseGrant" not in received:
                        data = connection.recv(65536)
                        assert data, received
                        received += data
                    tool.signal(signal.SIGINT)
                    outcome = tool.end()
            else:
                outcome = tool.end()
        finally:
            tool.close()
    assert outcome == (1, b"", b"Error: context canceled\n")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_waiter_for_a_lock_leaves_at_a_signal(duel: Duel, number: signal.Signals) -> None:
    duel.compare("put", "queue/0", "")

    def talk(tool: Conversation) -> None:
        _waits(tool, "queue")
        tool.signal(number)

    assert duel.converse("lock", "queue", talk=talk).code == 1
    duel.compare("get", "--prefix", "queue/")
    duel.compare("del", "queue/0")


def test_the_next_one_holds_the_lock(duel: Duel) -> None:
    duel.compare("put", "next/0", "")

    def talk(tool: Conversation) -> None:
        _waits(tool, "next")
        tool.ctl("put", "elsewhere", "1")
        tool.ctl("del", "next/0")
        tool.expect(rb"rev=\d+\n")

    words = ("lock", "next", "--", "sh", "-c", "echo rev=$ETCD_LOCK_REV")
    assert duel.converse(*words, talk=talk).code == 0
    duel.compare("get", "--prefix", "next/")


@pytest.mark.long
def test_a_lock_is_lost_with_its_session(duel: Duel) -> None:
    def talk(tool: Conversation) -> None:
        lease = tool.expect(rb"lost/([0-9a-f]+)\n")[1].decode()
        tool.ctl("lease", "revoke", lease)
        tool.expect(b"Error", in_err=True)

    # The loss is noticed after a third of this time, for which a busy machine may stand still.
    assert duel.converse("lock", "lost", "--ttl", "9", talk=talk, change=_plain).code == 1


def test_a_waiter_for_a_lock_learns_that_its_session_is_lost(duel: Duel) -> None:
    duel.compare("put", "gone/0", "")

    def talk(tool: Conversation) -> None:
        tool.ctl("lease", "revoke", _waits(tool, "gone"))
        tool.ctl("del", "gone/0")
        tool.expect(b"Error", in_err=True)
        tool.ctl("put", "gone/0", "")

    assert duel.converse("lock", "gone", talk=talk).code == 1


@at_one_kind
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("x", "--ttl=x"),
        ("x", "sh", "-c", "true"),
        ("x", "--ttl=-4", "true"),
        ("x", "true"),
        ("", "true"),
        ("x", "false"),
        ("x", "--", "sh", "-c", "exit 7"),
        ("x", "--", "sh", "-c", "kill -9 $$"),
        ("x", "--", "sh", "-c", "kill -TERM $$"),
        ("x", "--", "sh", "-c", "cat; echo $ETCD_LOCK_KEY | sed s,/.*,,; echo $ETCD_LOCK_REV"),
        ("x", "nosuch"),
        ("x", "./nosuch"),
        ("x", "/etc/passwd"),
        ("x", "/etc"),
        ("x", ""),
        ("x", "true", "-w", "nonsense"),
    ],
)
def test_commands_that_run_under_a_lock(duel: Duel, words: tuple[str, ...]) -> None:
    duel.converse("lock", *words, talk=lambda _: None, change=_plain)


def test_variables_of_the_lock_do_not_hide_inherited_ones(duel: Duel) -> None:
    words = ("lock", "x", "--", "sh", "-c", "echo $ETCD_LOCK_KEY")
    told = duel.converse(*words, talk=lambda _: None, env={"ETCD_LOCK_KEY": "mine"})
    assert told.out == b"mine\n"


LOOP = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.05; done"


def test_a_signal_is_the_command_s_affair(duel: Duel) -> None:
    def talk(tool: Conversation) -> None:
        tool.expect(b"up")
        tool.interrupt()

    words = ("lock", "x", "--", "sh", "-c", LOOP)
    assert duel.converse(*words, talk=talk, has_terminal=True).code == 5
    duel.compare("get", "--prefix", "x/")


def test_an_interrupt_at_the_terminal_gives_the_lock_back(duel: Duel) -> None:
    def talk(tool: Conversation) -> None:
        tool.expect(rb"typed/[0-9a-f]+\r\n\r\n")
        tool.interrupt()

    assert duel.converse("lock", "typed", talk=talk, has_terminal=True).code == 0
    duel.compare("get", "--prefix", "typed/")


@at_one_kind
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("a",),
        ("a", "b", "c"),
        ("-l", "a", "b"),
        ("a", "-w", "nonsense"),
        ("-l",),
        ("-x", "a"),
    ],
)
def test_elections_that_are_refused(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare("elect", *words, change=_without_usage)


@pytest.mark.parametrize("form", FORMATS)
def test_a_leader_leads_until_a_signal_comes(duel: Duel, form: str) -> None:
    def talk(tool: Conversation) -> None:
        if form in ("simple", "fields", "json"):
            tool.expect(rb"led/[0-9a-f]+\nme\n|Count.*\n|\}\n")
            tool.signal(signal.SIGTERM)

    duel.converse("elect", "led", "me", "-w", form, talk=talk, change=_plain)
    _clear(duel, "led/", form)
    duel.compare("get", "--prefix", "led/", "--keys-only")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_candidate_leaves_at_a_signal(duel: Duel, number: signal.Signals) -> None:
    duel.compare("put", "race/0", "")

    def talk(tool: Conversation) -> None:
        _waits(tool, "race")
        tool.signal(number)

    assert duel.converse("elect", "race", "me", talk=talk).code == 1
    duel.compare("get", "--prefix", "race/")
    duel.compare("del", "race/0")


def test_the_next_candidate_leads(duel: Duel) -> None:
    duel.compare("put", "later/0", "")

    def talk(tool: Conversation) -> None:
        _waits(tool, "later")
        tool.ctl("del", "later/0")
        tool.expect(rb"later/[0-9a-f]+\nme\n")
        tool.signal(signal.SIGINT)

    assert duel.converse("elect", "later", "me", talk=talk).code == 0


@pytest.mark.parametrize("form", ["simple", "json", "fields"])
def test_leaders_are_looked_at(duel: Duel, form: str) -> None:
    duel.compare("del", "--prefix", "seen/")
    shown = rb'"(?:%s)"\n(?:.*\n){2}"Count.*\n' if form == "fields" else rb"(?:%s).*\n"

    def talk(tool: Conversation) -> None:
        with Client(tool.address) as client:
            client.put("seen/1", "first")
            tool.expect(shown % rb"first|Zmlyc3Q=")
            client.put("seen/1", "again")
            tool.expect(shown % rb"again|YWdhaW4=")
            client.put("seen/2", "second")
            client.delete("seen/1")
            tool.expect(shown % rb"second|c2Vjb25k")
            tool.signal(signal.SIGINT)

    assert duel.converse("elect", "-l", "seen", "-w", form, talk=talk).code == 0


def _without_usage(data: bytes) -> bytes:
    """Leave the help out that follows an error: it is in our own words."""
    return data.partition(b"Usage:")[0]
