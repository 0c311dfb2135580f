"""The interface of the compiled function that passes over records which need only a check.

Rust implements it (`rust/storage/src/log_records.rs`); without it Python reads every record. The
function passes over entries and states in their usual form with valid running checksums, and stops
before any other record. Python then reads that record, and classifies damage.
"""

from collections.abc import Callable
from typing import NamedTuple

State = tuple[int, int, int]
"""Term, vote and commit index."""


class Skimmed(NamedTuple):
    """The result of a skim: the place where it stopped."""

    end: int
    crc: int
    records: int
    states: int
    state: State
    """The newest state; its term and commit index never go back."""
    durable_end: int
    """The end of records that later ones prove durable, or 0; see `SegmentScanner.durable_end`."""


Skim = Callable[[bytes, int, int, int, State], tuple[int, int, int, int, State, int]]
"""Takes a segment, an offset, the checksum there, the last index to pass over, and the state."""
