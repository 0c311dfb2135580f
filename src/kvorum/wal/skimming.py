"""What compiled code passes of a log in place of Python: the records that need only a check.

The function is the native edge's (`rust/src/log_records.rs`); where there is none, Python reads
every record. It passes entries and states in their usual form whose checksums continue those before
them, and stops before anything else, damage above all, which Python then judges.
"""

from collections.abc import Callable
from typing import NamedTuple

State = tuple[int, int, int]
"""Term, vote and commit index."""


class Skimmed(NamedTuple):
    """How far it came."""

    end: int
    crc: int
    records: int
    states: int
    state: State
    """The newest state; its term and commit index never go back."""
    durable_end: int
    """Where records end that others prove durable, or 0; see `SegmentScanner.durable_end`."""


Skim = Callable[[bytes, int, int, int, State], tuple[int, int, int, int, State, int]]
"""Given a segment, an offset, the checksum and the state there, passes entries up to an index."""
