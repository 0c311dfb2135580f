"""The same calls to our services and to a real etcd get the same answers."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rpc.calls import Call, alarm_calls, every_call, kv_calls
from tests.rpc.oracle import running_oracle
from tests.rpc.pair import Pair


class Pairs:
    """A pair in an empty state for each sequence; a new one after a difference."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._pair: Pair | None = None
        self._running: Iterator[Pair] | None = None

    def run(self, calls: list[Call]) -> None:
        if self._pair is None:
            self._running = self._start()
            self._pair = next(self._running)
        pair, self._pair = self._pair, None
        try:
            for call in calls:
                pair.check(call)
            pair.reset()
        except BaseException:
            self.close()
            raise
        self._pair = pair

    def _start(self) -> Iterator[Pair]:
        with running_oracle(self._factory.mktemp("pair")) as oracle:
            yield Pair(oracle)

    def close(self) -> None:
        if self._running is not None:
            next(self._running, None)
        self._running = self._pair = None


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    found = Pairs(tmp_path_factory)
    yield found
    found.close()


SEQUENCES = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    max_examples=200,
)


@given(calls=st.lists(kv_calls, min_size=5, max_size=25))
@SEQUENCES
def test_keys(pairs: Pairs, calls: list[Call]) -> None:
    pairs.run(calls)


@given(calls=st.lists(every_call, min_size=5, max_size=25))
@SEQUENCES
def test_every_call(pairs: Pairs, calls: list[Call]) -> None:
    pairs.run(calls)


@given(calls=st.lists(st.one_of(alarm_calls, kv_calls), min_size=2, max_size=15))
@SEQUENCES
def test_alarms(pairs: Pairs, calls: list[Call]) -> None:
    pairs.run(calls)
