"""The moment at which a flush says it is due is one at which it is.

The simulator once stood still there: the member asked to be woken at a moment, and when it came
there was nothing to do but to ask for it again.
"""

from hypothesis import given
from hypothesis import strategies as st

from kvorum.storage.backend import BufferLimits, open_backend
from kvorum.storage.backend.buckets import META
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles


@given(
    first=st.floats(0.0, 1e6, allow_nan=False),
    seconds=st.sampled_from([0.02, 0.1, 0.3, 0.5]),
)
def test_a_flush_is_due_when_it_says_so(first: float, seconds: float) -> None:
    files = MemoryFiles()
    buffers = BufferLimits(flush_seconds=seconds)
    backend = open_backend(files, MemoryEnvironments(files), "/", buffers=buffers)
    backend.put(META, b"name", b"value")
    backend.is_due(first)
    assert backend.due_at is not None
    assert backend.is_due(backend.due_at)
