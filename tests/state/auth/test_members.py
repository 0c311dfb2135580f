"""Steps of several users at all members of a cluster, with other leaders in between.

The answers are those of a cluster of a real etcd, whose leaders change at the same steps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.twins import Twins, running_twins
from tests.etcd import is_target
from tests.server.rpc.pairs import SEQUENCES
from tests.state.auth.runs import JANITOR, Lender, check, prepare, reset
from tests.state.auth.servers import OURS_IS_ETCD, QUICK, Both, Server
from tests.state.auth.steps import Step, sequences

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)
PLACES = range(3)


class Places:
    """Both clusters: two servers at each place, with the tokens of their clusters."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins
        self.tokens: tuple[dict[str, list[str]], ...] = ({}, {})
        self._both = [
            Both(
                *(
                    Server(cluster[place].address, tokens)
                    for cluster, tokens in zip(twins.clusters, self.tokens, strict=True)
                )
            )
            for place in PLACES
        ]

    def at(self, place: int) -> Both:
        """Return the members at a place, once they have all that happened elsewhere."""
        both = self._both[place]
        both.check("Auth/AuthStatus", pb.AuthStatusRequest(), ((), ()), "catching up")
        return both

    def lead(self, place: int) -> None:
        """Let the members at a place lead, if there is somebody left who may say so."""
        if not self._log_in():
            return
        self._twins.lead(place)

    def _log_in(self) -> bool:
        both = self.at(0)
        for server, cluster in zip(both, self._twins.clusters, strict=True):
            metadata: tuple[tuple[str, str], ...] = ()
            if server.answer("Auth/AuthStatus", pb.AuthStatusRequest()).enabled:
                server.log_in(JANITOR, JANITOR)
                metadata = (("token", server.tokens[JANITOR][-1]),)
            asked = server.client.ask("Auth/UserList", pb.AuthUserListRequest(), metadata=metadata)
            if isinstance(asked, Status):
                return False
            for member in cluster:
                member.client.metadata = metadata
        return True

    def close(self) -> None:
        for both in self._both:
            for server in both:
                server.client.close()


class Place(NamedTuple):
    """Where a step is made, and who leads from then on, if that changes."""

    number: int
    leader: int | None


@st.composite
def placed_sequences(draw: st.DrawFn) -> list[tuple[Place, Step]]:
    places = st.builds(Place, st.sampled_from(PLACES), st.sampled_from([*[None] * 12, *PLACES]))
    return [(draw(places), step) for step in draw(sequences())]


@contextmanager
def running_places(directory: Path) -> Iterator[Places]:
    if not is_target():
        pytest.skip("3.5.1 refuses other calls and in other words; 'make oracle' builds 3.7.3")
    make = "etcd" if OURS_IS_ETCD else "kvorum"
    with running_twins(directory, QUICK, make=make) as twins:
        found = Places(twins)
        yield found
        found.close()


@pytest.fixture(scope="module")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender[Places]]:
    found = Lender(running_places, tmp_path_factory)
    yield found
    found.close()


@pytest.mark.long
@given(steps=placed_sequences())
@settings(
    deadline=None,
    max_examples=max(1, SEQUENCES // 30),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_step_at_any_member(lender: Lender[Places], steps: list[tuple[Place, Step]]) -> None:
    with lender.lent() as places:
        prepare(places.at(0))
        for place, step in steps:
            if place.leader is not None:
                places.lead(place.leader)
            both = places.at(place.number)
            check(both, step, both.ours.revision)
        reset(places.at(0))
