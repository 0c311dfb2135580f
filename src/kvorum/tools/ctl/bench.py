"""`bench`: put a load on the cluster, and measure the latency of its calls.

`--clients` calls are in flight at once, over `--conns` connections. With a rate, each call has a
scheduled time from which its latency counts, so that a cluster that is slow for a while cannot hide
that by receiving fewer calls.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import KvorumError
from kvorum.client.operations import Operation
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.ctl.connecting import connect_all
from kvorum.tools.ctl.failures import error_text
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.reports import LoadReport, Timings, as_json, as_lines, report

NUMBER_DIGITS = 12
"""A watched value starts with the number of its put, in this many digits."""

Reports = list[LoadReport]
Call = Operation[None]


def put(invocation: CtlInvocation) -> None:
    """Set keys."""
    load = _Load(invocation)
    _measure(invocation, lambda clients: load.run_calls(clients, lambda _: ("put", load.put())))


def txn(invocation: CtlInvocation) -> None:
    """Set several keys in a transaction."""
    load = _Load(invocation)
    steps = _at_least_one(invocation, "txn-ops")
    if load.space < steps:
        raise CommandError(
            f"--key-space-size is {load.space}, fewer than the {steps} keys of --txn-ops: a "
            "transaction cannot set a key twice",
            BAD_ARGUMENTS,
        )
    _measure(
        invocation, lambda clients: load.run_calls(clients, lambda _: ("txn", load.txn(steps)))
    )


def read(invocation: CtlInvocation) -> None:
    """Read a key, or a range."""
    load = _Load(invocation)
    if len(invocation.arguments) not in (1, 2):
        raise CommandError(
            "bench range command needs one argument as key and an optional argument as range_end",
            BAD_ARGUMENTS,
        )
    request = pb.RangeRequest(
        key=as_bytes(invocation.arguments[0]),
        range_end=as_bytes(invocation.arguments[1]) if len(invocation.arguments) > 1 else b"",
        limit=max(0, invocation.number("limit")),
        serializable=_is_serializable(invocation),
    )
    call = _call(rpcs.RANGE, request)
    _measure(invocation, lambda clients: load.run_calls(clients, lambda _: ("range", call)))


def mixed(invocation: CtlInvocation) -> None:
    """Read and set keys."""
    load = _Load(invocation)
    percent, is_serializable = invocation.number("read-percent"), _is_serializable(invocation)
    if not 0 <= percent <= 100:
        raise CommandError(f"--read-percent {percent} was given; expected 0 to 100", BAD_ARGUMENTS)

    def choose(number: int) -> tuple[str, Call]:
        # Reads are spread evenly, and in the same way in every run.
        is_read = (number + 1) * percent // 100 > number * percent // 100
        if not is_read:
            return "put", load.put()
        request = pb.RangeRequest(key=load.key(), serializable=is_serializable)
        return "range", _call(rpcs.RANGE, request)

    _measure(invocation, lambda clients: load.run_calls(clients, choose))


def watch(invocation: CtlInvocation) -> None:
    """Set keys, and measure how long their events take to reach watchers."""
    load = _Load(invocation)
    watchers = _at_least_one(invocation, "watchers")
    _measure(invocation, lambda clients: _measure_watch(load, clients, watchers))


def _at_least_one(invocation: CtlInvocation, name: str) -> int:
    value = invocation.number(name)
    if value < 1:
        raise CommandError(f"--{name} {value} was given; expected 1 or more", BAD_ARGUMENTS)
    return value


def _is_serializable(invocation: CtlInvocation) -> bool:
    consistency = invocation.text("consistency")
    if consistency not in ("l", "s"):
        raise CommandError(f'unknown consistency flag "{consistency}"', BAD_ARGUMENTS)
    return consistency == "s"


def _call(rpc: rpcs.Rpc, request: pb.PutRequest | pb.RangeRequest | pb.TxnRequest) -> Call:
    return Operation(rpc, request.SerializeToString(), _nothing)


def _nothing(answer: bytes) -> None:
    del answer


class _Load:
    """The flags of all loads, and the calls that the flags define."""

    def __init__(self, invocation: CtlInvocation) -> None:
        for name in ("clients", "conns", "total", "key-space-size"):
            _at_least_one(invocation, name)
        for name in ("rate", "key-size", "val-size"):
            if invocation.number(name) < 0:
                raise CommandError(f"--{name} must not be negative", BAD_ARGUMENTS)
        self.clients = invocation.number("clients")
        self.total = invocation.number("total")
        self.space = invocation.number("key-space-size")
        self.prefix = as_bytes(invocation.text("key-prefix"))
        self.seconds_max = invocation.seconds("command-timeout")
        self.value = os.urandom(invocation.number("val-size"))
        self._rate = invocation.number("rate")
        self._key_size = invocation.number("key-size")
        self._is_sequential = invocation.switch("sequential-keys")
        self._next_key = 0

    def key(self) -> bytes:
        """Return the next key."""
        return self._key_of(self._number())

    def _number(self) -> int:
        if not self._is_sequential:
            return random.randrange(self.space)  # noqa: S311
        self._next_key += 1
        return (self._next_key - 1) % self.space

    def _key_of(self, number: int) -> bytes:
        return self.prefix + str(number).zfill(self._key_size).encode()

    def put(self, value: bytes | None = None) -> Call:
        """Return the call that sets the next key."""
        return _call(rpcs.PUT, self._put_request(self.key(), value))

    def txn(self, steps: int) -> Call:
        """Return the call that sets the next key and the keys after it."""
        first = self._number()
        keys = (self._key_of((first + step) % self.space) for step in range(steps))
        puts = [pb.RequestOp(request_put=self._put_request(key)) for key in keys]
        return _call(rpcs.TXN, pb.TxnRequest(success=puts))

    def _put_request(self, key: bytes, value: bytes | None = None) -> pb.PutRequest:
        return pb.PutRequest(key=key, value=self.value if value is None else value)

    async def run_calls(
        self, clients: Sequence[AsyncClient], choose: Callable[[int], tuple[str, Call]]
    ) -> Reports:
        """Make all calls and report on them; `choose` maps a number to a name and a call."""
        timings: dict[str, Timings] = {}
        started = time.monotonic()
        numbers = iter(range(self.total))
        with ProgressLine("calling", self.total, human_count) as progress:

            async def work(client: AsyncClient) -> None:
                for number in numbers:
                    due = await self._wait_until_due(started, number)
                    name, call = choose(number)
                    found = timings.setdefault(name, Timings())
                    try:
                        await client.run(call, self.seconds_max)
                        found.seconds.append(time.monotonic() - due)
                    except KvorumError as error:
                        found.fail(error_text(error))
                    progress.add(1)

            await asyncio.gather(
                *(work(clients[number % len(clients)]) for number in range(self.clients))
            )
        took = time.monotonic() - started
        return [report(name, took, each) for name, each in sorted(timings.items())]

    async def _wait_until_due(self, started: float, number: int) -> float:
        """Wait for the scheduled time of a call, and return it."""
        now = time.monotonic()
        if not self._rate:
            return now
        due = started + number / self._rate
        if due > now:
            await asyncio.sleep(due - now)
        return due


async def _measure_watch(load: _Load, clients: Sequence[AsyncClient], count: int) -> Reports:
    sent: dict[int, float] = {}
    timings = Timings()
    waiting = 0

    def choose(number: int) -> tuple[str, Call]:
        sent[number] = time.monotonic()
        head = str(number).zfill(NUMBER_DIGITS).encode()
        return "put", load.put(head + load.value[NUMBER_DIGITS:])

    async def follow(client: AsyncClient, note_started: Callable[[], None]) -> None:
        async with client.watch(prefix=load.prefix) as watch:
            note_started()
            async for event in watch:
                with suppress(ValueError, KeyError):
                    number = int(event.value[:NUMBER_DIGITS])
                    timings.seconds.append(time.monotonic() - sent[number])

    ready = asyncio.Event()

    def note_started() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            ready.set()

    tasks = [
        asyncio.create_task(follow(clients[number % len(clients)], note_started))
        for number in range(count)
    ]
    try:
        await _wait_ready(ready.wait(), tasks)
        started = time.monotonic()
        made = await load.run_calls(clients, choose)
        expected = sum(len(each.seconds) for each in made) * count
        until = time.monotonic() + load.seconds_max
        while len(timings.seconds) < expected and time.monotonic() < until:
            await asyncio.sleep(0.01)
        took = time.monotonic() - started
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(expected - len(timings.seconds)):
        timings.fail("the event did not come")
    return [*made, report("watch", took, timings)]


async def _wait_ready(ready: Awaitable[object], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for `ready`; if a task ends first, raise its error."""
    waiting = asyncio.ensure_future(ready)
    done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not waiting:
            waiting.cancel()
            task.result()


def _measure(
    invocation: CtlInvocation,
    load: Callable[[Sequence[AsyncClient]], Coroutine[None, None, Reports]],
) -> None:
    output = invocation.output
    output.check("simple", "json")

    async def run() -> Reports:
        clients = connect_all(invocation, AsyncClient, invocation.number("conns"))
        try:
            return await load(clients)
        finally:
            for client in clients:
                await client.close()

    made = asyncio.run(run())
    if output.form == "json":
        from kvorum.tools.cli.output import json_text

        output.line(json_text({each.name: as_json(each) for each in made}))
    else:
        for line in _separated(made):
            output.line(line)
    if not any(each.seconds for each in made):
        raise CommandError("no call succeeded")


def _separated(reports: Sequence[LoadReport]) -> Iterator[str]:
    for number, each in enumerate(reports):
        if number:
            yield ""
        yield from as_lines(each)
