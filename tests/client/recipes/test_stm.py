"""Software transactions and counters: what they do together could have been done one by one."""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from kvorum.client.errors import DeadlineError
from kvorum.client.recipes.errors import NotANumberError
from kvorum.client.recipes.levels import Isolation
from kvorum.client.sync.client import Client
from kvorum.client.sync.recipes.stm import Stm
from tests.client.recipes.conftest import Connect

CHECKED = [each for each in Isolation if each is not Isolation.READ_COMMITTED]


@pytest.mark.parametrize("isolation", Isolation)
def test_a_transaction_sees_its_own_writes(client: Client, name: str, isolation: Isolation) -> None:
    revision = client.put(f"{name}/a", "1").revision

    def change(stm: Stm) -> list[bytes | None]:
        stm.fetch([f"{name}/a", f"{name}/none"])
        seen = [stm.get(f"{name}/a"), stm.get(f"{name}/none")]
        stm.put(f"{name}/b", "2")
        stm.delete(f"{name}/a")
        assert stm.revision(f"{name}/a") == revision
        assert stm.revision(f"{name}/none") == 0
        return [*seen, stm.get(f"{name}/a"), stm.get(f"{name}/b")]

    assert client.transact(change, isolation=isolation) == [b"1", None, None, b"2"]
    assert [(each.key, each.value) for each in client.range(prefix=f"{name}/")] == [
        (f"{name}/b".encode(), b"2")
    ]
    assert client.transact(lambda stm: stm.get(f"{name}/b"), isolation=isolation) == b"2"


@pytest.mark.parametrize("isolation", CHECKED)
def test_transfers_in_parallel_are_as_if_one_by_one(
    client: Client, connect: Connect, name: str, isolation: Isolation
) -> None:
    """Every transfer writes down what it saw; in the order of commits, a model agrees."""
    accounts = [f"{name}/{each}" for each in "abc"]
    for account in accounts:
        client.put(account, "100")
    started = client.read(accounts[0]).revision

    def work(user: Client, seed: int) -> None:
        chance = random.Random(seed)
        for number in range(4):
            source, target = chance.sample(accounts, 2)
            amount = chance.randrange(1, 150)

            def transfer(
                stm: Stm,
                source: str = source,
                target: str = target,
                amount: int = amount,
                number: int = number,
            ) -> None:
                have, other = int(stm.get(source) or b""), int(stm.get(target) or b"")
                moved = amount if amount <= have else 0
                stm.put(source, str(have - moved))
                stm.put(target, str(other + moved))
                stm.put(f"{name}/log/{seed}/{number}", f"{source} {target} {have} {other} {moved}")

            user.transact(transfer, isolation=isolation)

    with connect() as other, ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(work, (client, other)[seed % 2], seed) for seed in range(3)]:
            each.result()

    model = dict.fromkeys(accounts, 100)
    written = client.read(prefix=f"{name}/log/", order="ascending", by="create_revision").kvs
    assert len(written) == 12
    for line in written:
        source, target, *numbers = line.text.split()
        have, had, moved = map(int, numbers)
        assert (model[source], model[target]) == (have, had)
        model[source] -= moved
        model[target] += moved
    assert all(each.create_revision > started for each in written)
    assert {
        each.key.decode(): int(each.value) for each in map(client.get, accounts) if each
    } == model


def test_only_the_strictest_level_minds_what_it_did_not_read(client: Client, name: str) -> None:
    for isolation, runs in ((Isolation.SERIALIZABLE_SNAPSHOT, 2), (Isolation.SERIALIZABLE, 1)):
        client.put(f"{name}/read", "1")
        values: list[bytes | None] = []

        def change(stm: Stm, values: list[bytes | None] = values) -> None:
            values.append(stm.get(f"{name}/read"))
            if len(values) == 1:
                client.put(f"{name}/written", "by another")
            stm.put(f"{name}/written", "mine")

        client.transact(change, isolation=isolation)
        assert len(values) == runs


def test_reads_of_one_revision(client: Client, name: str) -> None:
    """Two keys that are always written together are never seen apart."""
    client.put(f"{name}/a", "0")
    client.put(f"{name}/b", "0")
    runs: list[tuple[bytes | None, bytes | None]] = []

    def look(stm: Stm) -> None:
        first = stm.get(f"{name}/a")
        if not runs:

            def both(inner: Stm) -> None:
                inner.put(f"{name}/a", "1")
                inner.put(f"{name}/b", "1")

            client.transact(both)
        runs.append((first, stm.get(f"{name}/b")))

    client.transact(look, isolation=Isolation.SERIALIZABLE)
    assert runs == [(b"0", b"0"), (b"1", b"1")]


def test_a_transaction_that_never_commits_ends_in_time(client: Client, name: str) -> None:
    client.put(name, "0")

    def disturbed(stm: Stm) -> None:
        stm.get(name)
        client.put(name, "again")

    with pytest.raises(DeadlineError, match=r"could not commit within 0\.05 s"):
        client.transact(disturbed, timeout=0.05)


def test_nothing_that_is_counted_is_lost(client: Client, connect: Connect, name: str) -> None:
    start = Barrier(3)

    def work(user: Client) -> list[int]:
        counter = user.counter(name, default=10)
        start.wait()
        return [counter.add(2) for _ in range(5)]

    with connect() as other, ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work, each) for each in (client, other, client)]
        seen = [number for each in workers for number in each.result()]
    assert sorted(seen) == list(range(12, 42, 2))
    assert client.counter(name).value() == 40
    client.put(name, "ten")
    with pytest.raises(NotANumberError, match="expected a whole number"):
        client.counter(name).add()
