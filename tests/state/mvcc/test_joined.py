"""Long results are joined in slices, and in little more memory than they take themselves."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.state.mvcc.slices import Slices, join_in_slices, run_to_end


@given(st.lists(st.binary(max_size=50)), st.integers(1, 100))
def test_joined_parts_are_the_whole(parts: list[bytes], slice_bytes: int) -> None:
    whole = b"".join(parts)
    found: list[bytes] = []

    def run() -> Slices[None]:
        found.append((yield from join_in_slices(parts, slice_bytes)))

    count = len(list(run()))
    assert found == [whole]
    assert not parts
    assert count <= len(whole) // slice_bytes


def test_parts_are_freed_while_they_are_joined() -> None:
    tracemalloc.start()
    parts = [bytes(1 << 20) for _ in range(40)]
    whole = run_to_end(join_in_slices(parts, PRODUCTION.slice_bytes))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(whole) == 40 << 20
    # What is written and what is not, and what the buffer grows by; with a copy it was twice this.
    assert peak_bytes < 1.5 * len(whole)
