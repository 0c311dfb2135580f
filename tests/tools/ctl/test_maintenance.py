"""`alarm`, `defrag`, `move-leader` and `downgrade` beside etcdctl's."""

import re

import pytest

from tests.ports import held_port
from tests.tools.ctl.duel import Duel

FORMATS = ("simple", "fields", "json", "protobuf", "table", "nonsense")


def _plain(data: bytes) -> bytes:
    # Go's protobuf writes one blank or two, so that nobody relies on it.
    return re.sub(rb"  +", b" ", data.partition(b"Usage:")[0])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("hexadecimal", ["--hex=false", "--hex"])
def test_alarms_look_the_same(duel: Duel, form: str, hexadecimal: str) -> None:
    options = ("-w", form, hexadecimal)

    def change(data: bytes) -> bytes:
        return b"" if form == "protobuf" else _plain(data)

    duel.compare("alarm", "list", *options, change=change)
    duel.raise_alarm()
    duel.compare("alarm", "list", *options, change=change)
    if form == "nonsense":
        duel.compare("alarm", "disarm", change=_plain)
    duel.compare("alarm", "disarm", *options, change=change)
    duel.compare("alarm", "disarm", *options, change=change)


@pytest.mark.parametrize(
    "words",
    [
        ("alarm", "list", "x"),
        ("alarm", "disarm", "x"),
        ("defrag",),
        ("defrag", "--cluster"),
        ("defrag", "ignored", "-w", "json"),
        ("defrag", "-w", "nonsense"),
        ("defrag", "--endpoints="),
        ("move-leader",),
        ("move-leader", "1", "2"),
        ("move-leader", "xyz"),
        ("move-leader", "0x1"),
        ("move-leader", "1"),
        ("move-leader", "1", "-w", "nonsense"),
        ("downgrade", "validate"),
        ("downgrade", "validate", ""),
        ("downgrade", "validate", "3.6"),
        ("downgrade", "validate", "3.6.0"),
        ("downgrade", "validate", "3.5"),
        ("downgrade", "validate", "nonsense"),
        ("downgrade", "validate", "3.6", "3.5"),
        ("downgrade", "enable"),
        ("downgrade", "enable", ""),
        ("downgrade", "enable", "3.5"),
        ("downgrade", "enable", "1", "2"),
        ("downgrade", "cancel"),
        ("downgrade", "cancel", "ignored"),
    ],
)
def test_members_are_worked_on(duel: Duel, words: tuple[str, ...]) -> None:
    duel.compare(*words, change=_plain)


@pytest.mark.parametrize("form", FORMATS)
def test_a_downgrade_is_shown(duel: Duel, form: str) -> None:
    for words in (("validate", "3.6"), ("cancel",)):
        duel.compare(
            *("downgrade", *words, "-w", form),
            change=lambda data: b"" if form == "protobuf" else data,
        )


@pytest.mark.parametrize("form", FORMATS)
def test_a_move_to_the_leader_changes_nothing(duel: Duel, form: str) -> None:
    duel.compare("member", "list", save="^([0-9a-f]+)")
    duel.compare(
        *("move-leader", f"{{{len(duel.saved) - 1}}}", "-w", form),
        change=lambda data: b"" if form == "protobuf" else _plain(data),
    )


def test_unreachable_members(duel: Duel) -> None:
    with held_port() as port:
        for words in (
            ("defrag",),
            ("move-leader", "1"),
            ("alarm", "list"),
            ("downgrade", "cancel"),
        ):
            outcome = duel.compare(
                *words, f"--endpoints=127.0.0.1:{port}", "--command-timeout=50ms", endpoints=False
            )
            assert outcome.code == 1
