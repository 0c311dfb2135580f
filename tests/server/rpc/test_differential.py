"""The same calls to our services and to a real etcd get the same answers."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.server.rpc.calls import Call, alarm_sequences, every_call, kv_calls, sequences
from tests.server.rpc.pairs import SEQUENCES, Pairs, run

many = settings(
    deadline=None,
    max_examples=SEQUENCES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    found = Pairs(tmp_path_factory)
    yield found
    found.close()


@given(calls=sequences(kv_calls))
@many
def test_keys(pairs: Pairs, calls: list[Call]) -> None:
    run(pairs, calls)


@given(calls=sequences(every_call))
@many
def test_every_call(pairs: Pairs, calls: list[Call]) -> None:
    run(pairs, calls)


@given(calls=alarm_sequences())
@many
def test_alarms(pairs: Pairs, calls: list[Call]) -> None:
    run(pairs, calls)
