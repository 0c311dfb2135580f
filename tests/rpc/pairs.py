"""Pairs of servers for tests with many sequences: one pair for all, a new one after a failure."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.rpc.oracle import running_oracle
from tests.rpc.pair import Pair


class Pairs:
    """Lends a pair; whoever returns it has left both servers in the same, empty state."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._running = ExitStack()
        self._pair: Pair | None = None

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        if self._pair is None:
            directory = self._factory.mktemp("pair")
            self._pair = Pair(self._running.enter_context(running_oracle(directory)))
        try:
            yield self._pair
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._pair = None
        self._running.close()
