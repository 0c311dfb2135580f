"""Holders of a lock that are killed: never two at a time, and each with a greater number."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.client.sync.client import Client

HOLDERS = 3
KILLS = 2
CHANGES_MAX = 12


@pytest.mark.long
def test_no_two_hold_a_lock_whoever_is_killed(server: str, name: str, tmp_path: Path) -> None:
    chance = random.Random(11)
    path = tmp_path / "held"
    command = [sys.executable, "-m", "tests.client.recipes.holder", server, name, str(path)]
    holders: dict[int, subprocess.Popen[str]] = {}

    def begin() -> None:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        holders[holder.pid] = holder
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"

    try:
        with Client(server, timeout=20) as client:
            for _ in range(HOLDERS):
                begin()
            for _ in range(KILLS):
                with client.watch(f"{name}-work") as watch:
                    for _ in range(chance.randrange(CHANGES_MAX)):
                        next(watch)
                    # Whoever has made the first of its changes is in the midst of holding.
                    working = next(each for each in watch if each.value.endswith(b" 0"))
                victim = holders.pop(int(working.value.split()[0]))
                victim.kill()
                victim.communicate()
                begin()
            # The others go on, once the time of whoever held it when it was killed is over.
            with client.watch(f"{name}-work") as watch:
                for _ in range(CHANGES_MAX):
                    next(watch)
    finally:
        for each in holders.values():
            each.kill()
            each.communicate()

    check(path.read_text().split())


def check(lines: list[str]) -> None:
    """Fail if numbers do not grow, or if one began while another held it."""
    numbers = [int(line[1:]) for line in lines if line[0] == "+"]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > KILLS
    ended = [int(line[1:]) for line in lines if line[0] in "-?"]
    assert len(ended) == len(set(ended))
    for at, line in enumerate(lines):
        if line[0] == "-":
            assert lines[at - 1] == f"+{line[1:]}", f"another began before {line}"
