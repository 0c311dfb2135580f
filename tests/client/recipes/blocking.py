"""The client for asyncio, used as the one for threads is: so one test holds both."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from kvorum.client.aio.client import AsyncClient
from kvorum.client.sync.client import Client


class Blocking:
    """An object of asyncio, of which every method waits until it is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def _run(self, make: Callable[[], Any]) -> Any:
        async def run() -> Any:
            made = make()
            return await made if inspect.isawaitable(made) else made

        found = asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        is_ours = str(type(found).__module__).startswith("kvorum.client.aio")
        return Blocking(self._loop, found) if is_ours or inspect.isasyncgen(found) else found

    def __getattr__(self, name: str) -> Any:
        if isinstance(getattr(type(self._target), name, None), property):
            return self._run(lambda: getattr(self._target, name))
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            given = [self._given(each) for each in arguments]
            named = {key: self._given(each) for key, each in named.items()}
            return self._run(lambda: value(*given, **named))

        return call

    def _given(self, value: Any) -> Any:
        if isinstance(value, Blocking):
            return value._target
        if not inspect.isfunction(value):
            return value

        async def function(argument: Any) -> Any:
            return await asyncio.to_thread(value, Blocking(self._loop, argument))

        return function

    def __enter__(self) -> Any:
        self._run(self._target.__aenter__)
        return self

    def __exit__(self, *problem: Any) -> None:
        self._run(lambda: self._target.__aexit__(*problem))

    def __iter__(self) -> Any:
        return self if hasattr(self._target, "__anext__") else self._run(self._target.__iter__)

    def __next__(self) -> Any:
        async def following() -> Any:
            return [each async for each in _one(self._target)]

        found = self._run(following)
        if not found:
            raise StopIteration
        return found[0]

    def __len__(self) -> int:
        return cast(int, self._run(self._target.__len__))


async def _one(iterator: Any) -> Any:
    try:
        yield await anext(iterator)
    except StopAsyncIteration:
        return


@contextmanager
def asyncio_client(
    *arguments: Any, make: Callable[..., AsyncClient] = AsyncClient, **options: Any
) -> Iterator[Client]:
    """Give the client for asyncio as if it were the one for threads."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:

        async def made() -> AsyncClient:
            return make(*arguments, **options)

        client = asyncio.run_coroutine_threadsafe(made(), loop).result()
        with Blocking(loop, client) as blocking:
            yield blocking
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
