"""`endpoint` beside etcdctl's."""

import re

import pytest

from tests.ports import held_port
from tests.tools.ctl.duel import PATIENCE, Duel, run_here
from tests.waiting import until

FORMATS = ("simple", "fields", "json", "protobuf", "table", "nonsense")
_NUMBERS = re.compile(
    rb'("(?:dbSize|dbSizeInUse|raftIndex|raftAppliedIndex|raftTerm)":|'
    rb'"(?:DBSize|DBSizeInUse|RaftIndex|RaftAppliedIndex)" : )\d+'
)


def _plain(data: bytes) -> bytes:
    """Leave out what depends on how often a server wrote: sizes, indexes, widths of columns."""
    data = _NUMBERS.sub(rb"\1<number>", data)
    data = re.sub(rb"(?<= )\d+ [kM]?B\b|(?<= )\d+%|, \d+, \d+, \d+,", b"<size>", data)
    data = re.sub(rb"\xe2\x94\x82 +\d+ ", b"<cell>", data)
    return re.sub(rb" +|(?:\xe2\x94\x80)+", b" ", data)


@pytest.fixture(scope="module", autouse=True)
def _has_storage_version(duel: Duel) -> None:
    """Wait until the status of both servers is complete: they write that version a while later."""

    def has_version(address: str) -> bool:
        words = (f"--endpoints={address}", *PATIENCE, "endpoint", "status", "-w=fields")
        return b'"StorageVersion" : "3.7.0"' in run_here(list(words)).out

    for address in (duel.theirs, duel.ours):
        until(f"{address} has a storage version", lambda address=address: has_version(address))  # type: ignore[misc]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "words",
    [
        ("health",),
        ("status",),
        ("status", "--hex"),
        ("hashkv",),
        ("hashkv", "--rev=1", "--hex"),
        ("hashkv", "--rev=99"),
    ],
)
def test_endpoints_look_the_same(duel: Duel, words: tuple[str, ...], form: str) -> None:
    duel.compare("endpoint", *words, "-w", form, change=_plain)


@pytest.mark.parametrize("words", [("health",), ("status",), ("hashkv",), ("health", "-w=json")])
def test_the_cluster_names_its_endpoints(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare("endpoint", *words, "--cluster", change=_plain)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", ["health", "status", "hashkv"])
def test_an_endpoint_without_a_server(duel: Duel, command: str, form: str) -> None:
    with held_port() as port:
        words = ("endpoint", command, f"--endpoints=127.0.0.1:{port}", "-w", form)
        outcome = duel.compare(*words, "--command-timeout=50ms", endpoints=False, change=_plain)
    assert outcome.code in (1, 4)


@pytest.mark.long
@pytest.mark.parametrize("command", ["health", "status", "hashkv"])
def test_one_of_two_endpoints_is_served(duel: Duel, command: str) -> None:
    with held_port() as port:
        words = ("endpoint", command, f"--endpoints=127.0.0.1:{port}")
        # Both tools take all of the time, in which the one that is there answers: on a busy machine
        # it is given more.
        for seconds in (2, 8, 32):
            try:
                outcome = duel.compare(*words, f"--command-timeout={seconds}s", change=_plain)
                break
            except AssertionError:
                if seconds == 32:
                    raise
    assert outcome.code == 1


@pytest.mark.parametrize("command", ["health", "status", "hashkv"])
def test_no_endpoint_at_all(duel: Duel, command: str) -> None:
    for form in ("simple", "json", "table", "fields"):
        duel.compare("endpoint", command, "--endpoints=", "-w", form, endpoints=False)


def test_the_cluster_cannot_be_asked(duel: Duel) -> None:
    with held_port() as port:
        outcome = duel.compare(
            *("endpoint", "health", "--cluster", f"--endpoints=127.0.0.1:{port}"),
            "--command-timeout=50ms",
            endpoints=False,
        )
    assert outcome.code == 1


def test_alarms_are_unhealthy(duel: Duel) -> None:
    duel.raise_alarm()
    try:
        for form in FORMATS:
            duel.compare("endpoint", "health", "-w", form, change=_plain)
            duel.compare("endpoint", "status", "-w", form, change=_plain)
    finally:
        duel.compare("alarm", "disarm", change=_plain)


def test_misuse(duel: Duel) -> None:
    for words in (("health", "ignored"), ("hashkv", "--rev=x"), ("status", "--rev=1")):
        duel.compare("endpoint", *words, change=lambda data: _plain(data.partition(b"Usage:")[0]))
