"""One source for tests of both clients: written for asyncio, and run on threads as well.

`Awaited` makes an object of the client for threads look like its twin: what is awaited was done
when it was called.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, cast

from kvorum.client import AsyncClient, Client, OutcomeUnknownError
from tests.waiting import WAIT_SECONDS_MAX

Test = Callable[[AsyncClient], Coroutine[Any, Any, None]]


class Awaited:
    """An object of the client for threads, or what one of its methods returned."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return _wrapped(getattr(self._inner, name))

    def __call__(self, *arguments: Any, **options: Any) -> "Awaited":
        return Awaited(self._inner(*arguments, **options))

    def __await__(self) -> Generator[None, None, Any]:
        return _wrapped(self._inner)
        yield

    async def __aiter__(self) -> AsyncIterator[Any]:
        for each in self._inner:
            yield each

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    async def __anext__(self) -> Any:
        return next(self._inner)

    async def __aenter__(self) -> Any:
        return _wrapped(self._inner.__enter__())

    async def __aexit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


def _wrapped(value: Any) -> Any:
    module = type(value).__module__
    is_part = module.startswith("kvorum.client.sync")
    return Awaited(value) if is_part or callable(value) else value


def run_threads(
    test: Test, *arguments: Any, make: Callable[..., Client] = Client, **options: Any
) -> None:
    """Run a test on the client for threads; its calls may take long, as the machine may be busy."""
    options = {"timeout": WAIT_SECONDS_MAX, **options}
    with make(*arguments, **options) as client:
        coroutine = test(cast("AsyncClient", Awaited(client)))
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("the client for threads has waited for a loop")


def run_asyncio(
    test: Test, *arguments: Any, make: Callable[..., AsyncClient] = AsyncClient, **options: Any
) -> None:
    """Run a test on the client for asyncio; its calls may take long, as the machine may be busy."""
    options = {"timeout": WAIT_SECONDS_MAX, **options}

    async def main() -> None:
        async with make(*arguments, **options) as client:
            await test(client)

    asyncio.run(main())


async def ask_until(what: str, ask: Callable[[], Awaitable[object]]) -> None:
    """Ask a server again and again until the answer is true.

    `tests.waiting.until` cannot await; here each round awaits an answer, so that nobody spins.
    """
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not await ask():
        assert time.monotonic() < end, f"not within {WAIT_SECONDS_MAX:g} seconds: {what}"


async def put_surely(client: AsyncClient, key: str, value: str) -> int:
    """Put a key whose value is new, and return its revision.

    A put of unknown outcome, as an election or a lost connection may cause, is made again if the
    value is not there.
    """
    revision = 0

    async def is_put() -> bool:
        nonlocal revision
        try:
            revision = (await client.put(key, value)).revision
        except OutcomeUnknownError:
            found = await client.get(key)
            if found is None or found.value != value.encode():
                return False
            revision = found.mod_revision
        return True

    await ask_until(f"{key!r} is put", is_put)
    return revision
