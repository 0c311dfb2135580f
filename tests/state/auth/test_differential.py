"""Administration, logins and data calls of several users: the answers are those of a real etcd."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.server.rpc.pairs import SEQUENCES
from tests.state.auth.runs import Lender, run
from tests.state.auth.servers import Both, running_both
from tests.state.auth.steps import Step, sequences

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)


@contextmanager
def running_settled(directory: Path) -> Iterator[Both]:
    with running_both(directory) as both:
        both.settle()
        yield both


@pytest.fixture(scope="module")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender[Both]]:
    found = Lender(running_settled, tmp_path_factory)
    yield found
    found.close()


@given(steps=sequences())
@settings(
    deadline=None,
    max_examples=SEQUENCES // 3,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_step(lender: Lender[Both], steps: list[Step]) -> None:
    with lender.lent() as both:
        run(both, steps)
