"""`lease` beside etcdctl's."""

import re
import signal

import pytest

from tests.tools.ctl.duel import Conversation, Duel

FORMATS = ("simple", "fields", "json", "protobuf", "table", "nonsense")
LEASE = "([0-9a-f]{16})"
AWAY = "ffffffffffff"
"""A lease that does not exist."""


def _number(duel: Duel) -> str:
    """Return how the lease is written that was saved last."""
    return f"{{{len(duel.saved) - 1}}}"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hexadecimal", ["--hex=false", "--hex"])
def test_leases_look_the_same(duel: Duel, form: str, hexadecimal: str) -> None:
    def change(data: bytes) -> bytes:
        # Seconds may be over in one of them, and ids are elsewhere in protobuf.
        if form == "protobuf":
            data = b"" if data[:1] != b"E" else data.partition(b" (")[0].rstrip() + b"\n"
        return re.sub(rb'(remaining\(|"ttl":|"TTL" : )(?:[4-9]\d|100)\b', rb"\1<left>", data)

    options = ("-w", form, hexadecimal)
    duel.compare("lease", "grant", "100", *options, change=change)
    duel.compare("lease", "grant", "100", save=f"lease {LEASE}")
    lease = _number(duel)
    # One alone: etcd tells several in any order.
    duel.compare("put", "leased/key", "1", "--lease", lease)
    for words in (
        ("timetolive", lease),
        ("timetolive", lease, "--keys"),
        ("timetolive", AWAY),
        ("keep-alive", "--once", lease),
        ("keep-alive", "--once", AWAY),
        ("keep-alive", AWAY),
        ("revoke", lease),
        ("revoke", lease),
        ("timetolive", "--keys", lease),
        ("keep-alive", lease),
    ):
        duel.compare("lease", *words, *options, change=change)


@pytest.mark.parametrize("form", FORMATS)
def test_lists_look_the_same(duel: Duel, form: str) -> None:
    def change(data: bytes) -> bytes:
        return b"" if form == "protobuf" else data

    duel.compare("lease", "grant", "100", save=f"lease {LEASE}")
    duel.compare("lease", "list", "-w", form, change=change)
    duel.compare("lease", "list", "-w", form, "--hex", change=change)
    duel.compare("lease", "revoke", _number(duel))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nosuch",),
        ("grant",),
        ("grant", "1", "2"),
        ("grant", "x"),
        ("grant", "0x10"),
        ("grant", "99999999999999999999"),
        ("grant", "9999999999999"),
        ("grant", "--", "-5"),
        ("grant", "0"),
        ("revoke",),
        ("revoke", "x"),
        ("revoke", "0x1"),
        ("revoke", "--", "-5"),
        ("revoke", "1", "2"),
        ("revoke", "ffffffffffffffffff"),
        ("revoke", AWAY),
        ("timetolive",),
        ("timetolive", "xyz"),
        ("timetolive", "xyz", "-w", "nonsense"),
        ("timetolive", "--", "-5"),
        ("timetolive", "0"),
        ("timetolive", "1", "2"),
        ("list", "-w", "nonsense"),
        ("keep-alive",),
        ("keep-alive", "x"),
        ("keep-alive", "x", "-w", "nonsense"),
        ("keep-alive", "1", "2"),
        ("keep-alive", "--once"),
        ("keep-alive", "--nosuch"),
        ("rev", AWAY),
    ],
)
def test_what_is_refused(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare(
        "lease", *words, change=lambda data: b"" if not words[1:] else _without_usage(data)
    )


@pytest.mark.long
@pytest.mark.parametrize("form", ["simple", "json"])
def test_a_lease_is_kept_alive_until_it_is_revoked(duel: Duel, form: str) -> None:
    def talk(tool: Conversation) -> None:
        tool.expect(rb"TTL\D*9\D*\n")
        tool.expect(rb"TTL\D*9\D*\n")
        tool.ctl("lease", "revoke", tool.lease)

    def change(data: bytes) -> bytes:
        # One may have renewed it once more.
        lines = data.splitlines(keepends=True)
        return b"".join(line for at, line in enumerate(lines) if line not in lines[:at])

    # It is renewed every third of this time, in which a tool starts even on a busy machine.
    words = ("lease", "keep-alive", "LEASE", "-w", form)
    duel.converse(*words, talk=talk, lease_seconds=9, change=change)


def test_keeping_alive_ends_with_the_program(duel: Duel) -> None:
    def talk(tool: Conversation) -> None:
        tool.expect(rb"keepalived")
        tool.signal(signal.SIGINT)

    words = ("lease", "keep-alive", "LEASE")
    assert duel.converse(*words, talk=talk, lease_seconds=60).code == -signal.SIGINT


def _without_usage(data: bytes) -> bytes:
    """Leave the help out that follows an error: it is in our own words."""
    return data.partition(b"Usage:")[0]
