"""A client whose machine was suspended: its first question is answered by a clock that went on.

A test cannot suspend the machine. It moves the client's clock ahead instead, while sockets, threads
and the loop stay as they are: that is what a client finds when the machine wakes up.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any

import pytest

from kvorum import client
from kvorum.client import AsyncClient, KvorumError, LeaseLostError, loop, threads
from kvorum.client.clocks import choose_boot_clock
from kvorum.client.threads import CLOCK_CHECK_SECONDS, KEEPALIVE, ThreadedClient
from tests.client.both import run_asyncio, run_threads
from tests.kvorum import running_kvorum

Run = Callable[..., None]
Suspend = Callable[[float], None]
TTL_SECONDS = 600
"""No test takes so long that a lease ends without a suspend."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_kvorum(tmp_path_factory.mktemp("server")) as member:
        yield member.address


@pytest.fixture(params=["threads", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return run_threads if request.param == "threads" else run_asyncio


@pytest.fixture
def suspend(monkeypatch: pytest.MonkeyPatch) -> Suspend:
    """Let the client's clock go on by so many seconds, and nothing else."""
    away, real = 0.0, threads.clock

    def suspend(seconds: float) -> None:
        nonlocal away
        away += seconds

    # All of them: one that is imported later would keep the clock of this test.
    for found in walk_packages(client.__path__, "kvorum.client."):
        module = import_module(found.name)
        if getattr(module, "clock", None) is real:
            monkeypatch.setattr(module, "clock", lambda: real() + away)
    return suspend


def test_all_that_is_held_is_lost_at_the_first_question(
    server: str, run: Run, suspend: Suspend
) -> None:
    async def page(client: AsyncClient) -> None:
        lease = await client.lease(TTL_SECONDS)
        lease.keep_alive()
        session = await client.session(TTL_SECONDS)
        # Those of another run of this test are still there: only the client's clock went on.
        lock = client.lock(f"{run.__name__}/lock", ttl=TTL_SECONDS)
        await lock.acquire()
        election = client.election(f"{run.__name__}/election", ttl=TTL_SECONDS)
        await election.campaign("me")
        assert (lease.lost, session.lost, lock.lost, election.lost) == (None,) * 4
        assert lock.is_held
        suspend(TTL_SECONDS / 2)
        assert (lease.lost, session.lost, lock.lost, election.lost) == (None,) * 4
        suspend(TTL_SECONDS + 1)
        # Nothing is awaited in between, so neither a timer nor an answer has come.
        assert not lock.is_held
        for each in (lease, session, lock, election):
            assert isinstance(each.lost, LeaseLostError)
        for each in (lease, session):
            assert each.lives_until < time.monotonic()

    run(page, server)


def test_a_waiter_learns_of_a_loss_once_the_machine_is_awake(
    server: str, run: Run, suspend: Suspend, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleeps = threading.Event()
    sleep = ThreadedClient._sleep

    def noted(shell: ThreadedClient, seconds: float) -> list[tuple[int, int]]:
        if shell.keeping.is_busy and seconds:
            slept.append(seconds)
            sleeps.set()
        return sleep(shell, seconds)

    async def page(client: AsyncClient) -> None:
        lease = await client.lease(TTL_SECONDS)
        lease.keep_alive()
        sleeps.wait()
        suspend(TTL_SECONDS + 1)
        assert isinstance(await lease.wait_lost(), LeaseLostError)

    monkeypatch.setattr(ThreadedClient, "_sleep", noted)
    run(page, server)
    # A sleep goes on after a suspend for as long as was left of it.
    assert max(slept) <= CLOCK_CHECK_SECONDS


def test_a_leasing_client_asks_again_for_what_it_owned(
    server: str, run: Run, suspend: Suspend
) -> None:
    key, own = f"{run.__name__}/a", f"{run.__name__}/own/"

    async def page(client: AsyncClient) -> None:
        await client.put(key, "old")
        async with client.leasing(own, ttl=TTL_SECONDS) as leased:
            assert (await leased.get(key)).text == "old"  # type: ignore[union-attr]
            # By the rules, nobody could write it before the owner's lease has ended.
            await client.put(key, "new")
            assert (await leased.get(key)).text == "old"  # type: ignore[union-attr]
            suspend(TTL_SECONDS + 1)
            assert (await leased.get(key)).text == "new"  # type: ignore[union-attr]

    run(page, server)


def test_calls_end_in_time_though_a_timer_is_late(
    server: str, run: Run, suspend: Suspend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client waited for before is far away by the clock of its timer."""
    # Otherwise that looks every six seconds.
    monkeypatch.setattr(KEEPALIVE, "ping_seconds", 3600.0)

    async def page(client: AsyncClient) -> None:
        await client.sync_endpoints()
        shell: Any = client.shell
        with shell.turn():
            # Asked for again in an hour, by a timer or by a thread that sleeps as long.
            shell.core._sync_at = shell.core.now + 3600.0
        shell.start_reading()
        await client.get("suspended")
        suspend(7200.0)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client.set_endpoints(f"127.0.0.1:{silent.getsockname()[1]}")
            with pytest.raises(KvorumError):
                await client.get("suspended", timeout=0.1)

    run(page, server, timeout=3600.0)


# The clock.


class Machine(SimpleNamespace):
    """The clocks of a machine that was suspended for an hour."""

    CLOCK_MONOTONIC, CLOCK_BOOTTIME = 1, 7

    def monotonic(self) -> float:
        return 100.0

    def clock_gettime(self, number: int) -> float:
        if number == getattr(self, "refused", None):
            raise OSError(22, "Invalid argument")
        return {self.CLOCK_MONOTONIC: 100.0, 7: 3700.0}[number]


def test_the_clock_goes_on_while_the_machine_is_suspended() -> None:
    assert choose_boot_clock(Machine())() == 3700.0


def test_the_clock_is_monotonic_where_there_is_no_other() -> None:
    assert choose_boot_clock(Machine(refused=7))() == 100.0
    assert choose_boot_clock(SimpleNamespace(monotonic=lambda: 5.0))() == 5.0


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_both_clients_ask_the_clock_that_goes_on() -> None:
    assert threads.clock is loop.clock
    assert isinstance(threads.clock, partial)
    assert threads.clock.args == (time.CLOCK_BOOTTIME,)
