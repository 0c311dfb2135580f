"""Watch streams of our services and of a real etcd see the same, in the same order and groups."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.server.rpc.calls import Call
from tests.server.rpc.comparison import Comparison
from tests.server.rpc.pairs import SEQUENCES, Pairs
from tests.server.rpc.watching import Watching, sequences


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    found = Pairs(tmp_path_factory)
    yield found
    found.close()


@given(sequence=sequences())
@settings(
    deadline=None,
    max_examples=SEQUENCES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_streams(pairs: Pairs, sequence: list[Call | Watching]) -> None:
    with pairs.pair() as pair:
        Comparison(pair).run(sequence)
        pair.reset()
