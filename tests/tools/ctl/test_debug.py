"""`--debug`: the global flags as etcdctl tells them, but no secrets."""

import re

import pytest

from tests.tools.ctl.duel import Duel

SECRETS = re.compile(rb"(ETCDCTL_(?:AUTH_JWT_TOKEN|PASSWORD|USER))=.*")


def flags_in(told: bytes) -> list[bytes]:
    lines = [line for line in told.splitlines() if line.startswith(b"ETCDCTL_")]
    return sorted(SECRETS.sub(rb"\1", line) for line in lines)


@pytest.mark.parametrize("options", [(), ("--dial-timeout=3s", "-w", "json", "--hex")])
def test_the_flags_are_printed(duel: Duel, options: tuple[str, ...]) -> None:
    theirs, ours = duel.both("--debug", "get", "a", *options)
    wanted = [
        line.replace(duel.theirs.encode(), duel.ours.encode()) for line in flags_in(theirs.err)
    ]
    assert len(wanted) > 10
    assert flags_in(ours.err) == wanted
    assert ours.code == theirs.code == 0


def test_no_secret_is_printed(duel: Duel) -> None:
    _, ours = duel.both("--debug", "--user=me:hidden-word", "get", "a")
    assert b"ETCDCTL_USER=" in ours.err
    assert b"hidden-word" not in ours.out + ours.err
