"""After every test of this room, stores keep as many changes as usual again."""

from collections.abc import Iterator

import pytest

from kvorum.state.mvcc import key_changes

KEPT = key_changes.KEPT


@pytest.fixture(autouse=True)
def _usual_changes() -> Iterator[None]:
    yield
    key_changes.KEPT = KEPT
