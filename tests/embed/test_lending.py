"""Turns that a loop lends: one thread at a time, whoever takes them and whatever ends them."""

import asyncio
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.client import Client, KvorumError, OutcomeUnknownError
from kvorum.embed import Config, Server
from kvorum.embed.interrupts import run_uninterrupted
from kvorum.embed.lending import SharedLoop
from tests.waiting import WAIT_SECONDS_MAX, until


class Running:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop: SharedLoop
        self.problems: list[dict[str, Any]] = []
        self._is_there = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self._is_there.wait(WAIT_SECONDS_MAX)

    def _run(self) -> None:
        self.loop = SharedLoop()
        self.loop.set_exception_handler(lambda _, problem: self.problems.append(problem))
        self.loop.call_soon(self._is_there.set)
        self.loop.run_forever()
        self.loop.close()

    def lend(self, turn: Callable[[], object]) -> None:
        """Have a turn lent, as soon as the loop sleeps."""

        def run() -> None:
            turn()

        until("the loop sleeps, and lends a turn", lambda: self.loop.lend(run))

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_SECONDS_MAX)
        assert not self.thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.stop()


# The loop.


@pytest.mark.long
def test_one_thread_at_a_time_and_the_loop_gets_its_turns(running: Running) -> None:
    inside: list[int] = []
    clashes: list[int] = []
    turns: list[int] = []

    def turn() -> None:
        clashes.extend(inside)
        inside.append(threading.get_ident())
        for _ in range(3):
            time.sleep(0)  # others may run
        inside.pop()
        turns.append(threading.get_ident())

    ended = threading.Event()

    def own() -> None:
        turn()
        owned = turns.count(running.thread.ident or 0)
        if owned < 10 or len(turns) - owned < 10:
            # It sleeps before its next turn, so that there is something to borrow.
            running.loop.call_later(0.001, own)
        else:
            ended.set()

    def borrow() -> None:
        while not ended.is_set():
            running.loop.lend(turn)

    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(borrow) for _ in range(3)]
        running.loop.call_soon_threadsafe(own)
        try:
            assert ended.wait(WAIT_SECONDS_MAX), "both sorts of turns are taken"
        finally:
            ended.set()
        for each in found:
            each.result(WAIT_SECONDS_MAX)
    assert clashes == []


def test_what_a_lent_turn_asks_for_is_done_by_the_loops_thread(running: Running) -> None:
    ours, theirs = socket.socketpair()
    done: dict[str, int] = {}
    all_done = threading.Event()

    def note(name: str) -> None:
        done[name] = threading.get_ident()
        if len(done) == 4:
            all_done.set()

    async def task() -> None:
        note("task")

    def read() -> None:
        ours.recv(1)
        note("readable")

    def turn() -> None:
        running.loop.call_soon(note, "soon")
        running.loop.call_later(0.01, note, "later")
        running.loop.add_reader(ours, read)
        made.append(running.loop.create_task(task()))
        theirs.send(b"x")

    made: list[asyncio.Task[None]] = []
    with ours, theirs:
        running.lend(turn)
        assert all_done.wait(WAIT_SECONDS_MAX)
        running.lend(lambda: running.loop.remove_reader(ours))
    assert set(done.values()) == {running.thread.ident}


def test_a_loop_that_works_or_has_ended_lends_nothing() -> None:
    running = Running()
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(WAIT_SECONDS_MAX)

    running.loop.call_soon_threadsafe(work)
    assert begun.wait(WAIT_SECONDS_MAX)
    assert not running.loop.lend(lambda: pytest.fail("it does not sleep"))
    goes_on.set()
    running.stop()
    assert not running.loop.lend(lambda: pytest.fail("it has ended"))


def test_an_exception_that_ends_a_lent_turn_is_reported_to_the_loop(running: Running) -> None:
    class Broken(BaseException):
        pass

    def turn() -> None:
        raise Broken

    with pytest.raises(Broken):
        running.lend(turn)
    ((problem,), found) = running.problems, []
    assert isinstance(problem["exception"], Broken)
    running.lend(lambda: found.append(1))
    assert found == [1]


# Signals.


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([signal.SIGINT, signal.SIGALRM, signal.SIGUSR1]), max_size=4),
    st.integers(0, 3),
    st.booleans(),
)
def test_signals_wait_for_the_end_of_a_moment(
    numbers: list[signal.Signals], raised_at: int, moment_fails: bool
) -> None:
    class InterruptionError(Exception):
        pass

    happened: list[object] = []
    came = 0

    def handle(number: int, frame: object) -> None:
        nonlocal came
        assert frame is not None
        happened.append(number)
        came += 1
        if came - 1 == raised_at:
            raise InterruptionError

    def moment() -> str:
        for number in numbers:
            signal.raise_signal(number)
            os.getpid()
        happened.append("whole")
        if moment_fails:
            raise ArithmeticError
        return "result"

    handled = sorted({signal.SIGINT, signal.SIGALRM, signal.SIGUSR1})
    before = [signal.signal(number, handle) for number in handled]
    try:
        if len(numbers) > raised_at:
            with pytest.raises(InterruptionError):
                run_uninterrupted(moment)
        elif moment_fails:
            with pytest.raises(ArithmeticError):
                run_uninterrupted(moment)
        else:
            assert run_uninterrupted(moment) == "result"
        assert all(signal.getsignal(number) is handle for number in handled)
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
    assert happened[0] == "whole"
    assert happened[1:] == numbers[: raised_at + 1]


# Members.


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(Config(ephemeral=True)) as made:
        yield made


def patient(server: Server) -> Client:
    """Return a client whose calls a busy machine does not end."""
    return server.client(timeout=WAIT_SECONDS_MAX)


@contextmanager
def in_a_lent_turn(server: Server, act: Callable[[], None]) -> Iterator[threading.Event]:
    """Do something in the first turn that this thread takes for a call; the event tells of it.

    The member may wake by itself at any moment, and then takes the turn for a call itself. So this
    thread calls, each time when the member sleeps, until the event is set.
    """
    edge = server.edge
    assert edge is not None
    poll, caller, has_acted = edge.poll, threading.get_ident(), threading.Event()

    def polled(calls_max: int, bytes_max: int) -> Any:
        found = poll(calls_max, bytes_max)
        if found[0] and threading.get_ident() == caller and not has_acted.is_set():
            has_acted.set()
            act()
        return found

    edge.poll = polled  # type: ignore[method-assign]
    try:
        yield has_acted
    finally:
        edge.poll = poll  # type: ignore[method-assign]


def await_sleep(server: Server) -> None:
    """Wait until the member sleeps."""

    def is_asleep() -> bool:
        edge, loop = server.edge, server._loop
        return bool(edge and edge._is_asleep and loop and not loop._loop_lock.held.locked())

    until("the member sleeps", is_asleep)


def call_until_lent(
    server: Server, call: Callable[[], object], act: Callable[[], None] = lambda: None
) -> None:
    """Make calls until this thread takes the turn for one, in which something is done."""
    with in_a_lent_turn(server, act) as has_acted:

        def has_acted_in_a_call() -> bool:
            await_sleep(server)
            call()
            return has_acted.is_set()

        until("this thread takes the turn for its call", has_acted_in_a_call)


def test_a_caller_of_a_sleeping_member_takes_its_turn(server: Server) -> None:
    with patient(server) as client:
        call_until_lent(server, lambda: client.put("key", "value"))
        client.put("key", "last")

    async def main() -> None:
        async with (
            server.async_client(timeout=WAIT_SECONDS_MAX) as client,
            asyncio.timeout(WAIT_SECONDS_MAX),
        ):
            await client.get("key")
            with in_a_lent_turn(server, lambda: None) as has_acted:
                while not has_acted.is_set():
                    await_sleep(server)
                    await client.get("key")

    asyncio.run(main())


@pytest.mark.parametrize("is_durable", [False, True])
def test_calls_of_many_threads_and_loops_are_all_served(
    is_durable: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    each, threads_count, tasks_count = 60, 4, 8
    made = Config(data_dir=tmp_path_factory.mktemp("data")) if is_durable else None
    with Server(made or Config(ephemeral=True)) as server, patient(server) as shared:

        def in_a_thread(number: int) -> None:
            if number % 2:
                for turn in range(each):
                    shared.put("key", f"{number}.{turn}")
                    shared.get("key", serializable=bool(turn % 2))
            else:
                with patient(server) as own:
                    for turn in range(each):
                        own.put("key", f"{number}.{turn}")

        async def on_a_loop() -> None:
            async with server.async_client(timeout=WAIT_SECONDS_MAX) as client:

                async def puts(number: int) -> None:
                    for turn in range(each):
                        await client.put("key", f"task {number}.{turn}")

                await asyncio.gather(*map(puts, range(tasks_count)))

        with ThreadPoolExecutor(threads_count + 1) as threads:
            found = [threads.submit(in_a_thread, number) for number in range(threads_count)]
            found.append(threads.submit(asyncio.run, on_a_loop()))
            for future in found:
                future.result(WAIT_SECONDS_MAX)
        stored = shared.get("key")
        assert stored is not None
        assert stored.version == each * (threads_count + tasks_count)


def test_a_watch_and_calls_of_one_client_do_not_wait_for_each_other(server: Server) -> None:
    with patient(server) as client, client.watch("key") as watch:
        for number in range(50):
            client.put("key", f"{number}")
            assert next(watch).value == b"%d" % number


def test_a_member_that_is_closed_amid_calls_ends_them_all() -> None:
    for seed in range(3):
        moment = random.Random(seed).random() / 50
        begun = threading.Barrier(4)
        with Server(Config(ephemeral=True)) as server, ThreadPoolExecutor(3) as threads:

            def put_on() -> int:
                with patient(server) as client:
                    client.put("key", "value")
                    begun.wait(WAIT_SECONDS_MAX)  # noqa: B023
                    done = 0
                    try:
                        while True:
                            client.put("key", "value", timeout=1.0)
                            done += 1
                    except KvorumError:
                        return done

            found = [threads.submit(put_on) for _ in range(3)]
            begun.wait(WAIT_SECONDS_MAX)
            time.sleep(moment)
            server.close()
            for future in found:
                future.result(WAIT_SECONDS_MAX)


def test_an_error_in_a_lent_turn_stops_the_member_and_not_the_caller(server: Server) -> None:
    def fail() -> None:
        raise ArithmeticError("broken on purpose")

    made = Server(Config(ephemeral=True)).start()
    with patient(made) as client:
        with pytest.raises(OutcomeUnknownError):
            call_until_lent(made, lambda: client.put("key", "value"), fail)
        with pytest.raises(ArithmeticError, match="broken on purpose"):
            made.wait_stopped(WAIT_SECONDS_MAX)
        with pytest.raises(ArithmeticError, match="broken on purpose"):
            made.close()
    # The other member of this process is none the worse for it.
    with patient(server) as other:
        other.put("key", "value")


def test_a_member_may_begin_its_end_in_a_lent_turn() -> None:
    def end() -> None:
        made._running.end("closed by a test")

    with Server(Config(ephemeral=True)) as made, patient(made) as client:
        # The call in whose turn it begins is served before the end.
        call_until_lent(made, lambda: client.put("key", "value"), end)
        assert made.wait_stopped(WAIT_SECONDS_MAX)
        with pytest.raises(KvorumError, match="has ended"):
            client.get("key", timeout=0.5)


def test_an_interrupt_amid_a_lent_turn_leaves_the_member_whole(server: Server) -> None:
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with patient(server) as client:
            puts = 0

            def put() -> None:
                nonlocal puts
                puts += 1
                client.put("interrupted", f"{puts}")

            client.get("interrupted")
            for _ in range(5):
                before = client.shell.core  # the same client goes on afterwards
                with pytest.raises(KeyboardInterrupt):
                    call_until_lent(server, put, lambda: os.kill(os.getpid(), signal.SIGINT))
                assert client.shell.core is before
                stored = client.get("interrupted")
                # The turn was taken to its end before anybody heard of the signal.
                assert stored is not None and stored.version == puts
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_loop_in_debug_mode_lends_its_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    with Server(Config(ephemeral=True)) as server, patient(server) as client:
        call_until_lent(server, lambda: client.put("key", "value"))
        assert client.put("key", "value").revision > 1
