# Written by `make client` from kvorum/client/aio; change that.
"""A cache: keys under a prefix, readable without a call, a moment behind the store."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from kvorum.client.errors import ClosedError, DeadlineError, KvorumError
from kvorum.client.keys import Text, as_bytes, key_range
from kvorum.client.reflecting import Reflector
from kvorum.client.threads import FOREVER, Waiter, clock
from kvorum.client.values import KeyValue

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client

ASK_SECONDS = 0.05
ASK_SECONDS_MAX = 1.0
"""The longest interval of asking for the store's revision while a caller waits for one."""


class Cache:
    """A local mirror of a prefix; as a context manager it is filled, and closed at the end."""

    def __init__(self, client: "Client", prefix: Text, timeout: float | None) -> None:
        self._client = client
        self._shell = client.shell
        self._prefix = as_bytes(prefix)
        self._timeout = timeout
        self._waiters: set[Waiter] = set()
        shell = client.shell
        outer = client.key_prefix
        keys = key_range(prefix=outer + self._prefix)
        self._reflector = Reflector(
            shell.core, shell.watching, keys, len(outer), self._wake_waiters
        )
        with shell.turn():
            self._reflector.begin()
            shell.start_reading()

    def __enter__(self) -> Self:
        try:
            self.wait_ready(self._timeout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the store; later reads raise ClosedError."""
        with self._shell.turn():
            self._reflector.end(ClosedError("the cache is closed"))

    # Reading.

    def get(self, key: Text) -> KeyValue | None:
        """Return a key as it was a moment ago, or None; raises the error that ended the cache."""
        name = as_bytes(key)
        if not name.startswith(self._prefix):
            raise ValueError(f"the cache holds keys that begin with {self._prefix!r}, not {name!r}")
        self._check()
        return self._reflector.found.get(name)

    def __iter__(self) -> Iterator[KeyValue]:
        """Iterate over all keys in their order, as they are at one revision."""
        self._check()
        with self._shell.turn():
            found = self._reflector.found
            every = [found[key] for key in self._reflector.sorted_keys()]
        return iter(every)

    def __len__(self) -> int:
        """Return how many keys there are."""
        self._check()
        return len(self._reflector.found)

    @property
    def revision(self) -> int:
        """The cache includes everything up to this revision; 0 before it is ready."""
        return self._reflector.revision

    @property
    def readings(self) -> int:
        """The number of full reads: one, and one more after each gap in the history."""
        return self._reflector.readings

    @property
    def error(self) -> KvorumError | None:
        """The error that ended the cache; None while it follows the store."""
        return self._reflector.error

    def _check(self) -> None:
        if self._reflector.error is not None:
            raise self._reflector.error
        if not self._reflector.readings:
            raise RuntimeError("the cache is not filled yet; wait for it with wait_ready()")

    # Waiting.

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the cache is filled."""
        self._wait(lambda: self._reflector.readings > 0, "ready", timeout)

    def wait_revision(self, revision: int, timeout: float | None = None) -> None:
        """Wait until the cache includes a revision, for example to read back a write."""
        self._wait(
            lambda: self._reflector.readings > 0 and self._reflector.revision >= revision,
            f"at revision {revision}",
            timeout,
            asks=True,
        )

    def wait_change(self, revision: int, timeout: float | None = None) -> int:
        """Wait until the cache is newer than a revision, and return its revision."""
        self._wait(
            lambda: self._reflector.revision > revision, f"newer than revision {revision}", timeout
        )
        return self._reflector.revision

    def _wait(
        self, holds: Callable[[], bool], what: str, timeout: float | None, *, asks: bool = False
    ) -> None:
        until = FOREVER if timeout is None else clock() + timeout
        seconds = ASK_SECONDS
        ask_at = clock() + seconds if asks else FOREVER
        while True:
            with self._shell.turn():
                if self._reflector.error is not None:
                    raise self._reflector.error
                if holds():
                    return
                waiter = Waiter()
                self._waiters.add(waiter)
            try:
                now = clock()
                if now >= ask_at:
                    seconds = min(2 * seconds, ASK_SECONDS_MAX)
                    ask_at = now + seconds
                    with self._shell.turn():
                        self._reflector.confirm()
                if now >= until:
                    raise DeadlineError(
                        f"the cache of {self._prefix!r} was not {what} within {timeout} s"
                    )
                self._shell.wait(waiter, min(until, ask_at))
            finally:
                self._waiters.discard(waiter)

    def _wake_waiters(self) -> None:
        for each in tuple(self._waiters):
            each.wake()
