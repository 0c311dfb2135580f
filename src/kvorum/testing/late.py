"""An asyncio client that is made before there is a loop, and ends with the loop that it is used in.

So a fixture that is no coroutine can give one to any test: to coroutines that a plugin of pytest
runs, and to functions that run a loop of their own.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvorum.client.aio.client import AsyncClient


class LateAsyncClient(AsyncClient):
    """Belongs to the loop in which it is used first."""

    def __init__(self, endpoints: tuple[str, ...], **options: Any) -> None:
        """Take the arguments of an `AsyncClient`; nothing else of it is there until it is used."""
        self.__dict__["_late"] = (endpoints, options)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Become a client with the first look at what only a client has."""
            if "_late" not in self.__dict__ or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            loop = asyncio.get_running_loop()
            endpoints, options = self.__dict__.pop("_late")
            super().__init__(endpoints, **options)
            self.__dict__["_loop"] = loop
            # A loop that ends closes the generators that were begun in it, and so the client.
            self.__dict__["_guard"] = guard = _close_with_loop(self)
            with suppress(StopIteration):
                guard.__anext__().send(None)
            return getattr(self, name)

    def _copy(self) -> AsyncClient:
        # A copy is of a client that there is, and shares its connections.
        assert self.shell is not None
        return super()._copy()

    def end(self) -> None:
        """Close it from outside its loop, if it was used and its loop has not ended."""
        loop: asyncio.AbstractEventLoop | None = self.__dict__.get("_loop")
        if loop is None or loop.is_closed():
            return
        if not loop.is_running():
            loop.run_until_complete(self.close())
        elif _runs_here(loop):
            # It cannot be waited for here; the loop goes on, and does it.
            self.__dict__["_closing"] = loop.create_task(self.close())
        else:
            asyncio.run_coroutine_threadsafe(self.close(), loop).result()


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is loop
    return False


async def _close_with_loop(client: AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.close()
