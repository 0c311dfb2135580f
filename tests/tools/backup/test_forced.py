"""A store that went back under the same address: its revisions never join those of before."""

import shutil
import threading
from pathlib import Path

import pytest

from kvorum.client import Client
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.points import spans_of
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from tests.kvorum import _running
from tests.ports import held_port
from tests.tools.backup.harness import (
    OPTIONS,
    RecordedReports,
    point_of,
    restored,
    state_in,
    state_of,
)
from tests.waiting import WAIT_SECONDS_MAX


def nothing(_: int) -> None:
    pass


@pytest.mark.long
@pytest.mark.parametrize("is_alike", [False, True])
def test_a_survivor_that_went_back_begins_another_history(tmp_path: Path, is_alike: bool) -> None:
    """The watch of a backup is lost, and the next server has other revisions by the same numbers.

    Alike: the last revision that was recorded removes the same key in both.
    """
    data, old = tmp_path / "data", tmp_path / "old"
    store = DirectoryStore(RealFiles(), f"{tmp_path}/archive")
    told = RecordedReports()
    with held_port() as port, held_port() as elsewhere:
        with (
            _running(data, port, scheme="http") as server,
            Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
        ):
            client.put("b", "early")
        # What a member had that did not hear of what follows.
        shutil.copytree(data, old)
        backed_up = Client(f"127.0.0.1:{port}", timeout=WAIT_SECONDS_MAX)
        made = Backup(backed_up, store, OPTIONS, told)
        thread = threading.Thread(target=made.run)
        states = {}
        with (
            _running(data, port, scheme="http") as server,
            Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
        ):
            thread.start()
            told.wait(lambda: bool(told.taken))
            for number in range(4):
                revision = client.put("a", f"lost {number}").revision
                states[revision] = state_of(client, revision)
            last = client.delete("b").revision
            states[last] = state_of(client, last)
            told.wait_recorded(last)
        new = {}
        # The backup comes back when the store has passed what was recorded.
        with (
            _running(old, elsewhere, scheme="http") as server,
            Client(server.address, timeout=WAIT_SECONDS_MAX) as client,
        ):
            for number in range(4):
                client.put("a", f"new {number}")
            assert (client.delete("b") if is_alike else client.put("b", "new")).revision == last
            for number in range(2):
                revision = client.put("a", f"later {number}").revision
                new[revision] = state_of(client, revision)
        with _running(old, port, scheme="http"):
            told.wait(lambda: len(told.histories) == 2)
            told.wait(lambda: len(told.taken) == 2)
            made.stop()
            thread.join()
        backed_up.close()
    assert "does not continue" in told.reasons[1]
    archive = Archive(store)
    assert find_problems(archive, nothing) == []
    first, second = spans_of(archive)
    assert first.last == last < second.first
    states[second.first] = new[second.first]
    for number, expected in states.items():
        directory = tmp_path / f"restored {number}"
        restored(directory, store, point_of(store, number))
        assert state_in(directory, number, expected.compact_revision) == expected
