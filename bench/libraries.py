"""Measure one Python client library in a process of its own.

`python -m bench.libraries WHAT LIBRARY ADDRESS SECONDS` repeats one operation with one library for
that time, and prints the operations per second and the microseconds of processor time for each.
`grpcio` is gRPC's own library with bare messages: the minimum cost of a library built on it.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from kvorum import AsyncClient, Client
from kvorum.api.pb import etcdserverpb as pb

KEY = b"bench/one"
VALUE = b"v" * 100
IN_FLIGHT = 100
PREFIX = b"bench/events/"
PREFIX_END = b"bench/events0"

Calls = dict[str, Callable[[], Any]]
"""The operations to measure: a put and a get."""


# Round trips without asyncio.


@contextmanager
def kvorum_calls(address: str) -> Iterator[Calls]:
    """Yield Kvorum's operations."""
    with Client(address) as client:
        yield {"put": lambda: client.put(KEY, VALUE), "get": lambda: client.get(KEY)}


@contextmanager
def etcd3gw_calls(address: str) -> Iterator[Calls]:
    """Yield the operations of etcd3gw, which uses the JSON gateway."""
    import etcd3gw

    host, _, port = address.partition(":")
    client = etcd3gw.Etcd3Client(host, int(port))
    yield {"put": lambda: client.put(KEY, VALUE), "get": lambda: client.get(KEY)}


@contextmanager
def grpcio_calls(address: str) -> Iterator[Calls]:
    """Yield the operations of grpcio."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        put, get = _multi_callables(channel)
        yield {
            "put": lambda: put(pb.PutRequest(key=KEY, value=VALUE), timeout=5),
            "get": lambda: get(pb.RangeRequest(key=KEY), timeout=5),
        }


def _multi_callables(channel: Any) -> list[Any]:
    return [
        channel.unary_unary(
            f"/etcdserverpb.KV/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        for name, request, response in (
            ("Put", pb.PutRequest, pb.PutResponse),
            ("Range", pb.RangeRequest, pb.RangeResponse),
        )
    ]


# Round trips with asyncio.


@asynccontextmanager
async def kvorum_async_calls(address: str) -> AsyncIterator[Calls]:
    """Yield Kvorum's operations for asyncio."""
    async with AsyncClient(address) as client:
        yield {"put": lambda: client.put(KEY, VALUE), "get": lambda: client.get(KEY)}


@asynccontextmanager
async def aetcd_calls(address: str) -> AsyncIterator[Calls]:
    """Yield the operations of aetcd."""
    import aetcd

    host, _, port = address.partition(":")
    async with aetcd.Client(host=host, port=int(port)) as client:
        yield {"put": lambda: client.put(KEY, VALUE), "get": lambda: client.get(KEY)}


@asynccontextmanager
async def grpcio_async_calls(address: str) -> AsyncIterator[Calls]:
    """Yield the operations of grpcio for asyncio."""
    import grpc

    async with grpc.aio.insecure_channel(address) as channel:
        put, get = _multi_callables(channel)
        yield {
            "put": lambda: put(pb.PutRequest(key=KEY, value=VALUE), timeout=5),
            "get": lambda: get(pb.RangeRequest(key=KEY), timeout=5),
        }


THREADED = {"kvorum": kvorum_calls, "etcd3gw": etcd3gw_calls, "grpcio": grpcio_calls}
ASYNC = {"kvorum": kvorum_async_calls, "aetcd": aetcd_calls, "grpcio": grpcio_async_calls}


class Meter:
    """Counts operations from its construction until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.count = 0
        self._began, self._used = time.perf_counter(), time.process_time()
        self._ends = self._began + seconds

    def goes_on(self) -> bool:
        """Count one operation; return whether there is time for more."""
        self.count += 1
        return time.perf_counter() < self._ends

    def show(self) -> None:
        """Print the rate and the processor time per operation."""
        seconds = time.perf_counter() - self._began
        used = time.process_time() - self._used
        print(self.count / seconds, used / self.count * 1e6)


def round_trips(what: str, library: str, address: str, seconds: float) -> None:
    """Make one call after the other."""
    with THREADED[library](address) as calls:
        call = calls[what]
        for _ in range(100):
            call()
        meter = Meter(seconds)
        while meter.goes_on():
            call()
        meter.show()


async def async_calls(
    what: str, library: str, address: str, seconds: float, in_flight: int
) -> None:
    """Keep `in_flight` calls running at a time."""
    async with ASYNC[library](address) as calls:
        call: Callable[[], Awaitable[Any]] = calls[what]
        await asyncio.gather(*(call() for _ in range(100)))
        meter = Meter(seconds)

        async def repeat() -> None:
            while meter.goes_on():
                await call()

        await asyncio.gather(*(repeat() for _ in range(in_flight)))
        meter.show()


# Events from a server that always has more of them.


def watch(library: str, address: str, seconds: float) -> None:
    """Take events until the time is over."""
    del library
    with Client(address) as client, client.watch(prefix=PREFIX, revision=2) as events:
        next(events)
        meter = Meter(seconds)
        for event in events:
            assert event.value
            if not meter.goes_on():
                break
        meter.show()


async def watch_async(library: str, address: str, seconds: float) -> None:
    """Take events until the time is over."""
    async with AsyncExitStack() as stack:
        if library == "kvorum":
            client = await stack.enter_async_context(AsyncClient(address))
            events: AsyncIterator[Any] = client.watch(prefix=PREFIX, revision=2)
        else:
            import aetcd

            host, _, port = address.partition(":")
            other = await stack.enter_async_context(aetcd.Client(host=host, port=int(port)))
            events = aiter(await other.watch(PREFIX, range_end=PREFIX_END, start_revision=2))
        await anext(events)
        meter = Meter(seconds)
        async for event in events:
            assert event.kv.value
            if not meter.goes_on():
                break
        meter.show()


def main() -> None:
    """Measure the chosen operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what")
    parser.add_argument("library")
    parser.add_argument("address")
    parser.add_argument("seconds", type=float)
    chosen = parser.parse_args()
    arguments = (chosen.library, chosen.address, chosen.seconds)
    parts: dict[str, Callable[[], None]] = {
        "put": partial(round_trips, "put", *arguments),
        "get": partial(round_trips, "get", *arguments),
        "async-put": lambda: asyncio.run(async_calls("put", *arguments, 1)),
        "async-get": lambda: asyncio.run(async_calls("get", *arguments, 1)),
        "put-100": lambda: asyncio.run(async_calls("put", *arguments, IN_FLIGHT)),
        "get-100": lambda: asyncio.run(async_calls("get", *arguments, IN_FLIGHT)),
        "watch": partial(watch, *arguments),
        "async-watch": lambda: asyncio.run(watch_async(*arguments)),
    }
    parts[chosen.what]()


if __name__ == "__main__":
    main()
