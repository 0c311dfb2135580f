"""Leases on real servers: kept alive, lost, released, and what waits for that."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kvorum.client import operations
from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import ClosedError, KvorumError, LeaseLostError
from kvorum.client.sync.client import Client
from tests.servers import RUNNING, running_server
from tests.waiting import until

TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module", params=RUNNING)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with running_server(request.param, tmp_path_factory.mktemp("server")) as address:
        yield address


def test_a_lease_that_another_revokes_is_lost_and_says_so(server: str) -> None:
    with (
        Client(server, timeout=TIMEOUT_SECONDS) as client,
        Client(server, timeout=TIMEOUT_SECONDS) as other,
    ):
        lease = client.lease(600)
        lease.keep_alive()
        client.put("held", "", lease=lease.id)
        kept = lease._kept
        assert kept is not None
        until("the lease is renewed for the first time", lambda: kept.answer)
        lives_until = kept.lives_until
        other.run(operations.revoke_operation(lease.id))
        with client.shell.turn():
            # Otherwise it is renewed after a third of its time.
            kept.renew_at = client.shell.core.now
        assert isinstance(lease.wait_lost(), LeaseLostError)
        assert kept.lives_until == lives_until


def test_a_waiter_for_the_loss_of_a_lease_learns_of_its_release(server: str) -> None:
    told: list[KvorumError] = []
    with Client(server, timeout=TIMEOUT_SECONDS) as client:
        lease = client.lease(60)
        with pytest.raises(ClosedError, match="not kept alive"):
            lease.wait_lost()
        lease.keep_alive()
        thread = threading.Thread(target=lambda: told.append(lease.wait_lost()))
        thread.start()
        until("the thread waits", lambda: lease._waiter)
        lease.release()
        thread.join(TIMEOUT_SECONDS)
        assert isinstance(told[0], ClosedError)
        lease.keep_alive()
        assert lease.lost is None
        lease.revoke()
        assert lease.lost is not None


def test_the_same_on_asyncio(server: str) -> None:
    async def page() -> None:
        async with AsyncClient(server, timeout=TIMEOUT_SECONDS) as client:
            lease = await client.lease(60)
            lease.keep_alive()
            waiting = asyncio.ensure_future(lease.wait_lost())
            await asyncio.sleep(0)
            lease.release()
            assert isinstance(await asyncio.wait_for(waiting, TIMEOUT_SECONDS), ClosedError)
            lease.keep_alive()
            waiting = asyncio.ensure_future(lease.wait_lost())
            await asyncio.sleep(0)
        # A client that is closed keeps nothing alive.
        assert isinstance(await asyncio.wait_for(waiting, TIMEOUT_SECONDS), LeaseLostError)

    asyncio.run(page())
