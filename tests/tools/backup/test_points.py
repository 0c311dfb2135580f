"""Any revision of a backup restores to what the server itself was at that revision."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.client import Client
from kvorum.client.operations import revoke_operation
from kvorum.client.transactions import delete, put
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.stores import DirectoryStore
from kvorum.tools.backup.verifying import find_problems
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.tools.backup.harness import State, point_of, restored, running_backup, state_in, state_of
from tests.waiting import WAIT_SECONDS_MAX

KEYS = [b"key/%02d" % number for number in range(12)]
STEPS = 25


class Writer:
    """Makes random changes, and remembers what the store was after each of them."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._chance = random.Random(seed)
        self.states: dict[int, State] = {}
        self._leases: list[int] = []
        self._compacted = 0

    def step(self) -> int:
        """Change something; return the revision."""
        chance, client = self._chance, self._client
        key, value = chance.choice(KEYS), chance.randbytes(chance.choice([0, 3, 300, 5000]))
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                client.put(key, value)
            case 4:
                client.delete(key)
            case 5:
                client.delete(prefix=b"key/0")
            case 6:
                some = chance.sample(KEYS, 4)
                client.txn().then(
                    put(some[0], value), delete(some[1]), put(some[2], b""), put(some[3], value)
                ).commit()
            case 7:
                self._leases.append(client.lease(5000).id)
                client.put(key, value, lease=self._leases[-1])
            case 8:
                if self._leases:
                    lease = self._leases.pop(chance.randrange(len(self._leases)))
                    client.put(key, value, lease=lease)
                    client.run(revoke_operation(lease))
            case 9:
                newest = max(self.states, default=1)
                if newest > self._compacted + 3:
                    self._compacted = newest - chance.randrange(3)
                    client.compact(self._compacted)
        revision = client.read(from_key=b"\0", count_only=True).revision
        if revision not in self.states:
            self.states[revision] = state_of(client, revision)
        return revision


@contextmanager
def running(kind: str, directory: Path) -> Iterator[str]:
    if kind == "kvorum":
        with running_kvorum(directory) as server:
            yield server.address
    else:
        with running_etcd(directory) as etcd:
            yield etcd.address


@pytest.mark.long
@pytest.mark.parametrize("kind", ["kvorum", "etcd"])
def test_every_revision_restores_to_what_the_server_was(kind: str, tmp_path: Path) -> None:
    with (
        running(kind, tmp_path / "data") as address,
        Client(address, timeout=WAIT_SECONDS_MAX) as client,
    ):

        @settings(max_examples=4)
        @given(seed=st.integers(0, 2**32), runs=st.integers(1, 3))
        def check(seed: int, runs: int) -> None:
            with TemporaryDirectory(dir=tmp_path) as scratch:
                store = DirectoryStore(RealFiles(), f"{scratch}/archive")
                writer = Writer(client, seed)
                base = 0
                for _ in range(runs):
                    with running_backup(client, store) as told:
                        if not base:
                            told.wait(lambda: bool(told.taken))
                            base = told.taken[0].name.revision
                        # Whoever compacts has to let the backup begin.
                        told.wait_recorded(client.put(b"begin", b"").revision)
                        for _ in range(STEPS):
                            newest = writer.step()
                        told.wait_recorded(newest)
                        assert not told.failures
                assert len(Archive(store).histories) == 1
                assert find_problems(Archive(store), lambda _: None) == []
                chance = random.Random(seed)
                covered = [each for each in writer.states if each >= base]
                for revision in {*chance.sample(covered, 4), newest}:
                    directory = Path(scratch, str(revision))
                    restored(directory, store, point_of(store, revision))
                    expected = writer.states[revision]
                    found = state_in(directory, revision, expected.compact_revision)
                    assert found == expected

        check()
