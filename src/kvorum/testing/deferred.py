"""An asyncio client that is created before the event loop that uses it, and ends with that loop.

This lets a synchronous fixture give a client to any test: to coroutines that a pytest plugin runs,
and to functions that run a loop of their own.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvorum.client.aio.client import AsyncClient


class DeferredAsyncClient(AsyncClient):
    """A client that belongs to the loop that first uses it."""

    def __init__(self, endpoints: tuple[str, ...], **options: Any) -> None:
        """Keep the arguments of an `AsyncClient`; the first use creates the client."""
        self.__dict__["_arguments"] = (endpoints, options)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Create the client at the first access to one of its attributes."""
            if "_arguments" not in self.__dict__ or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            loop = asyncio.get_running_loop()
            endpoints, options = self.__dict__.pop("_arguments")
            super().__init__(endpoints, **options)
            self.__dict__["_loop"] = loop
            # A loop that ends closes the async generators that started in it, and so the client.
            self.__dict__["_guard"] = guard = _close_with_loop(self)
            with suppress(StopIteration):
                guard.__anext__().send(None)
            return getattr(self, name)

    def _copy(self) -> AsyncClient:
        # Only an existing client can be copied, because the copy shares its connections.
        assert self.shell is not None
        return super()._copy()

    def end(self) -> None:
        """Close the client from outside its loop, if it was used and its loop has not ended."""
        loop: asyncio.AbstractEventLoop | None = self.__dict__.get("_loop")
        if loop is None or loop.is_closed():
            return
        if not loop.is_running():
            loop.run_until_complete(self.close())
        elif _is_running_here(loop):
            # This thread runs the loop, so it cannot wait; the loop closes the client later.
            self.__dict__["_closing"] = loop.create_task(self.close())
        else:
            asyncio.run_coroutine_threadsafe(self.close(), loop).result()


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is loop
    return False


async def _close_with_loop(client: AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.close()
