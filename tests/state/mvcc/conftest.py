"""After every test of this room, slices have their usual size again."""

from collections.abc import Iterator

import pytest

from kvorum.state.mvcc.slices import KEYS_PER_SLICE
from tests.state.mvcc.machine import set_slice


@pytest.fixture(autouse=True)
def _usual_slices() -> Iterator[None]:
    yield
    set_slice(KEYS_PER_SLICE)
