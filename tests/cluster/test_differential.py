"""The same calls to each member of our cluster and of an etcd's get the same answers.

The first member of both leads.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.cluster.twins import Twins, running_twins
from tests.server.rpc.calls import Call, every_call, sequences
from tests.server.rpc.pairs import SEQUENCES

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    with running_twins(tmp_path_factory.mktemp("twins")) as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("place", range(3), ids=["leader", "follower", "other follower"])
@given(calls=sequences(every_call))
@settings(
    deadline=None,
    max_examples=SEQUENCES // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_call(twins: Twins, place: int, calls: list[Call]) -> None:
    pair = twins.ready(place)
    for call in calls:
        pair.check(call)
    pair.reset()
