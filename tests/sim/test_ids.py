"""Requests of a member that was started again are not taken for those from before.

A clock on the wall that stood still between two starts once gave them the same ids: entries from
before a crash were found to be new requests, and applied as those. Seed 75 of five members saw
two histories.
"""

from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import PutRequest
from kvorum.sim.machine import UNIX_SECONDS, Machine
from tests.incidents.stage import Stage


def test_an_entry_from_before_a_restart_is_applied_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "_time_of_day", lambda _: UNIX_SECONDS)
    stage = Stage(tmp_path, 3)
    member = stage.followers()[0]
    seen: set[int] = set()
    for number in range(5):
        machine = stage.machine(member)
        assert machine.member is not None
        first = machine.member.replica.ids.next_id()
        assert not seen & set(range(first, first + 100)), "ids begin as they did before"
        seen |= set(range(first, first + 100))
        # Sent to the leader, and still on its way when the member starts again and asks anew.
        stage.begin(PutRequest(key=b"k/0", value=b"old %d" % number), member, patience=0.5)
        stage.run(0.004)
        stage.restart(member)
        stage.begin(PutRequest(key=b"k/0", value=b"new %d" % number), member)
        stage.run(0.3)
    stage.serve()
    stage.agree()
    stage.judge()
    stage.close()
