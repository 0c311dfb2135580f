"""The same calls and the same watches, to our services and through a proxy, get the same answers.

Behind the proxy is our server or a real etcd. What our services answer is compared with an etcd's
without a proxy in `tests.server.rpc`; so both kinds of members look alike through it.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import is_target
from tests.server.rpc.calls import Call, alarm_sequences, every_call, kv_calls, sequences
from tests.server.rpc.comparison import Comparison
from tests.server.rpc.pairs import SEQUENCES, Pairs, run
from tests.server.rpc.watching import Watching
from tests.server.rpc.watching import sequences as watch_sequences
from tests.servers import PROXIED

some = settings(
    deadline=None,
    max_examples=SEQUENCES // 10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", params=PROXIED)
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pairs]:
    if not is_target():
        pytest.skip("3.5.1 answers differently, and our server behind a proxy does not")
    found = Pairs(tmp_path_factory, request.param)
    yield found
    found.close()


@given(calls=sequences(kv_calls))
@some
def test_keys(pairs: Pairs, calls: list[Call]) -> None:
    run(pairs, calls)


@given(calls=sequences(every_call))
@some
def test_every_call(pairs: Pairs, calls: list[Call]) -> None:
    run(pairs, calls)


@given(calls=alarm_sequences())
@some
def test_alarms(pairs: Pairs, calls: list[Call]) -> None:
    run(pairs, calls)


class ThroughProxy(Comparison):
    """Compares the streams of a member with those that a proxy makes of one of its own."""

    def masked(self, response: pb.WatchResponse) -> pb.WatchResponse:
        found = super().masked(response)
        if found.canceled and not found.created and not found.compact_revision:
            # It answers by itself, as etcd's does, and may not know of the newest revision.
            found.header.revision = 0
        return found


@given(sequence=watch_sequences())
@some
def test_watches(pairs: Pairs, sequence: list[Call | Watching]) -> None:
    with pairs.pair() as pair:
        ThroughProxy(pair).run(sequence)
        pair.reset()
