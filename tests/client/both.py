"""One source for tests of both clients: written for asyncio, and run on threads as well.

`Awaited` makes an object of the client for threads look like its twin: what is awaited was done
when it was called.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, cast

from kvorum.client import AsyncClient, Client

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
    """Run a test on the client for threads."""
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
    """Run a test on the client for asyncio."""

    async def main() -> None:
        async with make(*arguments, **options) as client:
            await test(client)

    asyncio.run(main())
