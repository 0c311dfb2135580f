"""Calls whose answer is lost: what may be made again is, and nothing is left that nobody holds."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvorum.client import rpcs
from kvorum.client.errors import LeaseLostError, OutcomeUnknownError
from kvorum.client.operations import Operation
from kvorum.client.sync.client import Client
from kvorum.client.sync.recipes.sessions import Session

Acquire = Callable[[Client, str, Session], Any]

ACQUIRE: dict[str, Acquire] = {
    "lock": lambda client, name, session: client.lock(name, session=session).acquire(),
    "reader": lambda client, name, session: (
        client.read_write_lock(name, session=session).read().acquire()
    ),
    "election": lambda client, name, session: client.election(name, session=session).campaign("x"),
    "double barrier": lambda client, name, session: client.double_barrier(
        name, 1, session=session
    ).enter(),
}


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server, timeout=20) as made:
        yield made


def lose_answers(
    client: Client, monkeypatch: pytest.MonkeyPatch, *, times: int, is_done: bool
) -> list[Operation[Any]]:
    """Lose the answers of the next transactions, which were done or not; return which."""
    run, lost = client.run, list[Operation[Any]]()

    def losing(operation: Operation[Any], timeout: float | None = None) -> Any:
        if operation.rpc is not rpcs.TXN or len(lost) == times:
            return run(operation, timeout)
        lost.append(operation)
        if is_done:
            run(operation, timeout)
        raise OutcomeUnknownError("the connection was lost")

    monkeypatch.setattr(client, "run", losing)
    return lost


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("kind", ACQUIRE)
def test_acquiring_is_repeated(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_done: bool
) -> None:
    with client.session(30) as session:
        lost = lose_answers(client, monkeypatch, times=2, is_done=is_done)
        ACQUIRE[kind](client, name, session)
        assert len(lost) == 2
        found = [each for each in client.range(prefix=f"{name}/") if each.lease]
        assert [each.lease for each in found] == [session.id]


def test_a_key_that_cannot_be_removed_takes_its_session_with_it(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = client.session(30)
    lock = client.lock(name, session=session)
    lock.acquire()
    lose_answers(client, monkeypatch, times=100, is_done=False)
    lock.release()
    assert isinstance(session.lost, LeaseLostError)
    assert "could not be removed" in str(session.lost)


def test_an_item_that_may_have_been_taken_is_reported(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = client.queue(name)
    queue.put("one")
    lose_answers(client, monkeypatch, times=1, is_done=True)
    with pytest.raises(OutcomeUnknownError):
        queue.get()
    assert queue.get_nowait() is None
