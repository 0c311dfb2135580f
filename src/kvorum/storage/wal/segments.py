"""Names the log's files, and selects the segments that a reader needs.

The name of a segment has its number, which grows by one, and the expected index of its first entry.
Readers ignore other names: `.tmp` is the next segment in preparation, `.broken` data that repair
cut off, `tmp.` an unfinished file.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from kvorum.storage.files import Files
from kvorum.storage.wal.errors import SegmentsMissingError

SEGMENT_BYTES = 64_000_000
"""The preallocated length of a segment; a segment that reaches it is full."""

SPARE_NAME = "0.tmp"

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.wal")


@dataclass(slots=True, frozen=True)
class Segment:
    """One file of the log, identified by its name."""

    number: int
    index: int

    @property
    def name(self) -> str:
        """The file's name in the directory of the log."""
        return f"{self.number:016x}-{self.index:016x}.wal"


def list_segments(files: Files, directory: str) -> list[Segment]:
    """Return every segment of a directory, oldest first; none if there is no directory."""
    if not files.exists(directory):
        return []
    matches = [_NAME.fullmatch(name) for name in files.list(directory)]
    return [Segment(int(match[1], 16), int(match[2], 16)) for match in matches if match]


def leftovers(files: Files, directory: str) -> list[str]:
    """Return the unfinished files of a log's directory, which a start removes."""
    names = files.list(directory) if files.exists(directory) else []
    return [name for name in names if name == SPARE_NAME or name.startswith("tmp.")]


def exists(files: Files, directory: str) -> bool:
    """Return whether a directory has a log."""
    return bool(list_segments(files, directory))


def segments_from(files: Files, directory: str, index: int) -> list[Segment]:
    """Return the segments with everything after an index, without gaps, up to the last."""
    segments = list_segments(files, directory)
    if not segments:
        raise SegmentsMissingError(directory, "there is no file of a log")
    starts = [place for place, segment in enumerate(segments) if segment.index <= index]
    if not starts:
        raise SegmentsMissingError(
            directory,
            f"the log begins at index {segments[0].index} in {segments[0].name}, "
            f"but index {index} is asked for",
        )
    needed = segments[starts[-1] :]
    check_gapless(directory, needed)
    return needed


def check_gapless(directory: str, segments: list[Segment]) -> None:
    """Raise SegmentsMissingError if a number is missing."""
    for before, after in pairwise(segments):
        if after.number != before.number + 1:
            raise SegmentsMissingError(
                directory, f"segment {before.number + 1} between {before.name} and {after.name}"
            )


_ZEROS = bytes(1 << 16)


def is_zero_from(data: bytes, start: int) -> bool:
    """Return whether only zeros follow; comparing is ten times faster than counting them."""
    return all(
        _ZEROS.startswith(data[place : place + len(_ZEROS)])
        for place in range(start, len(data), len(_ZEROS))
    )
