"""Pairs of servers for tests with many sequences: one pair for all, a new one after a failure."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.server.rpc.calls import Call
from tests.server.rpc.oracle import running_oracle, settled
from tests.server.rpc.pair import Pair, settled_harness

SEQUENCES = int(os.environ.get("KVORUM_SEQUENCES", "20"))
"""How many sequences of calls a test tries; `make differential` asks for many more."""


class Pairs:
    """Lends a pair; a test that does not fail leaves both servers in the same, empty state.

    What our services are compared with is an etcd, or a server of another kind.
    """

    def __init__(self, factory: pytest.TempPathFactory, kind: str = "etcd") -> None:
        self._factory = factory
        self._kind = kind
        self._running = ExitStack()
        self._pair: Pair | None = None

    @contextmanager
    def pair(self) -> Iterator[Pair]:
        if self._pair is None:
            directory = self._factory.mktemp("pair")
            oracle = self._running.enter_context(running_oracle(directory, kind=self._kind))
            self._pair = Pair(settled_harness(), settled(oracle))
        try:
            yield self._pair
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._pair = None
        self._running.close()


def run(pairs: Pairs, calls: list[Call]) -> None:
    """Make calls to both servers of a pair, compare the answers, and empty both."""
    with pairs.pair() as pair:
        for call in calls:
            pair.check(call)
        pair.reset()
