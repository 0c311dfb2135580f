"""Locks, semaphores, and locks for readers and writers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from kvorum.api.pb.etcdserverpb import TxnRequest
from kvorum.client.aio.recipes import sessions as aio_sessions
from kvorum.client.errors import ClosedError, DeadlineError, KvorumError, LeaseLostError
from kvorum.client.operations import Operation, revoke_operation, txn_operation
from kvorum.client.recipes.errors import NotHeldError
from kvorum.client.sync.client import Client
from kvorum.client.sync.recipes import sessions as sync_sessions
from kvorum.client.sync.recipes.locks import Lock
from kvorum.client.transactions import put
from kvorum.client.values import TxnResult
from kvorum.client.watch_set import WatchState
from tests.client.recipes.conftest import Connect
from tests.client.recipes.queueing import queue_of


def test_a_lock_is_a_key_whose_creation_is_its_fencing_number(client: Client, name: str) -> None:
    with client.lock(name, ttl=30) as lock:
        (kv,) = client.range(prefix=f"{name}/")
        assert (kv.key, kv.value) == (f"{name}/{kv.lease:x}".encode(), b"")
        assert (lock.key, lock.fencing) == (kv.key, kv.create_revision)
        assert lock.is_held
        assert lock.lost is None
        assert client.txn().when(lock.condition).then(put(f"{name}-seen")).commit().succeeded
    assert client.count(prefix=f"{name}/") == 0
    assert kv.lease not in client.leases()
    with pytest.raises(NotHeldError, match="mutex: lock has already been released"):
        lock.release()


def test_no_two_hold_a_lock_and_later_ones_have_greater_numbers(client: Client, name: str) -> None:
    holders: list[int] = []
    numbers: list[int] = []

    def work(_: int) -> None:
        with client.lock(name, ttl=30) as lock:
            holders.append(lock.fencing)
            numbers.append(lock.fencing)
            client.put(f"{name}-work", str(lock.fencing))
            assert holders == [lock.fencing]
            holders.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert numbers == sorted(set(numbers))
    assert client.count(prefix=f"{name}/") == 0


def test_a_lock_is_tried_and_waited_for_so_long(
    client: Client, connect: Connect, name: str
) -> None:
    with connect() as other, client.session(30) as session, client.lock(name, session=session):
        theirs = other.lock(name, ttl=30)
        assert not theirs.try_acquire()
        with pytest.raises(DeadlineError, match=f"'{name}' was not free within 0.05 s"):
            theirs.acquire(timeout=0.05)
        # Whoever gave up stands in nobody's way.
        assert client.count(prefix=f"{name}/") == 1
        with pytest.raises(RuntimeError, match="this session holds"):
            client.lock(name, session=session).acquire()
    assert client.lock(name, ttl=30).try_acquire()


def test_a_waiter_gets_the_lock_when_it_is_released(
    client: Client, connect: Connect, name: str
) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name, ttl=30)
        lock.acquire()
        first = lock.fencing
        theirs = other.lock(name, ttl=30)
        waiting = pool.submit(theirs.acquire)
        queue_of(client, f"{name}/", 2)
        assert not waiting.done()
        lock.release()
        waiting.result()
        assert theirs.fencing > first
        theirs.release()


def test_a_holder_learns_that_its_session_is_lost(client: Client, name: str) -> None:
    lock = client.lock(name, ttl=5)
    lock.acquire()
    (kv,) = client.range(prefix=f"{name}/")
    client.run(revoke_operation(kv.lease))
    assert "lease" in str(lock.wait_lost())
    assert not lock.is_held
    with pytest.raises(LeaseLostError):
        lock.release()
    with pytest.raises(LeaseLostError):
        _lose_within(client, client.lock(name, ttl=5))
    assert client.count(prefix=f"{name}/") == 0


def _lose_within(client: Client, lock: Lock) -> None:
    with lock:
        (kv,) = client.range(prefix=lock.key)
        client.run(revoke_operation(kv.lease))
        lock.wait_lost()


def test_a_waiter_whose_session_ends_waits_no_longer(
    client: Client, connect: Connect, name: str
) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool, client.lock(name, ttl=30):
        session = other.session(30)
        waiting = pool.submit(other.lock(name, session=session).acquire)
        queue_of(client, f"{name}/", 2)
        watches = other.shell.watching._watches
        while not any(each.state is WatchState.OPEN for each in list(watches.values())):
            client.get(name)
        session.close()
        with pytest.raises(ClosedError, match="the session is closed"):
            waiting.result()
        assert client.count(prefix=f"{name}/") == 1


def test_a_session_that_has_ended_gets_no_lock(client: Client, name: str) -> None:
    session = client.session(30)
    session.orphan()
    lock = client.lock(name, session=session)
    with pytest.raises(ClosedError, match="not kept alive any more"):
        lock.acquire()
    assert not lock.is_held
    with pytest.raises(ClosedError, match="not kept alive any more"):
        client.election(name, session=session).campaign()


def test_a_removal_that_comes_late_takes_no_key_that_was_put_since(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome was unknown, so the session removed the key again, and put it anew."""
    sent: list[Operation[TxnResult]] = []

    def noting(request: TxnRequest) -> Operation[TxnResult]:
        sent.append(txn_operation(request))
        return sent[-1]

    for module in (aio_sessions, sync_sessions):
        monkeypatch.setattr(module, "txn_operation", noting)
    with client.session(30) as session:
        lock = client.lock(name, session=session)
        with lock:
            pass
        (removal,) = sent
        with lock:
            client.run(removal)
            assert client.count(lock.key) == 1
            # As one of a claim whose outcome was unknown, so that its revision is not known.
            session.remove(lock.key)
            assert client.count(lock.key) == 0
            assert len(sent) == 2


def test_so_many_hold_a_semaphore(client: Client, connect: Connect, name: str) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool:
        holders = [client.semaphore(name, 2, ttl=30) for _ in range(2)]
        for each in holders:
            each.acquire()
        assert not other.semaphore(name, 2, ttl=30).try_acquire()
        with pytest.raises(ValueError, match="is for 3 here, and for 2 by"):
            other.semaphore(name, 3, ttl=30).try_acquire()
        third = other.semaphore(name, 2, ttl=30)
        waiting = pool.submit(third.acquire)
        queue_of(client, f"{name}/", 3)
        holders[1].release()
        waiting.result()
        assert third.fencing > holders[0].fencing
        third.release()
        holders[0].release()


def test_readers_share_and_writers_do_not(client: Client, connect: Connect, name: str) -> None:
    with connect() as other, ThreadPoolExecutor(2) as pool:
        mine, theirs = client.read_write_lock(name, ttl=30), other.read_write_lock(name, ttl=30)
        reading = mine.read()
        reading.acquire()
        with theirs.read() as second:
            assert second.fencing > reading.fencing
        writing = theirs.write()
        assert not writing.try_acquire()
        waiting = pool.submit(writing.acquire)
        queue_of(client, f"{name}/write/", 1)
        # A reader that comes later than a writer waits for it, so that writers do not starve.
        late = mine.read()
        assert not late.try_acquire()
        late_waiting = pool.submit(late.acquire)
        queue_of(client, f"{name}/read/", 2)
        reading.release()
        waiting.result()
        assert not late_waiting.done()
        writing.release()
        late_waiting.result()
        late.release()
    assert client.count(prefix=f"{name}/") == 0


def test_a_waiter_learns_that_the_client_was_closed(
    client: Client, connect: Connect, name: str
) -> None:
    with ThreadPoolExecutor(1) as pool, client.lock(name, ttl=30):
        with connect() as other:
            waiting = pool.submit(other.lock(name, ttl=30).acquire)
            queue_of(client, f"{name}/", 2)
        with pytest.raises(KvorumError, match=r"closed"):
            waiting.result()
