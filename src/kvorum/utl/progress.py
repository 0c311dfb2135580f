"""A line on the terminal that shows progress; nothing where there is no terminal."""

import sys
import time
from types import TracebackType
from typing import Self

from kvorum.backend.images import Content, Entries
from kvorum.cli.text import human_bytes

DRAW_SECONDS = 0.1
BAR_CHARACTERS = 30


class Progress:
    """Counts bytes of a total while the block lasts, and draws them now and then."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = max(1, total)
        self._done = 0
        self._started = time.monotonic()
        self._draw_at = self._started
        self._is_drawn = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_drawn:
            self._draw()
            sys.stderr.write("\n")

    def add(self, count: int, remaining: int | None = None) -> None:
        """Count more bytes; `left` gives how many are left, if that is known only now."""
        self._done += count
        if remaining is not None:
            self._total = max(self._total, self._done + remaining)
        if self._is_drawn:
            now = time.monotonic()
            if now >= self._draw_at:
                self._draw_at = now + DRAW_SECONDS
                self._draw()

    def counted(self, content: Content) -> Content:
        """Count the content of a database while it passes."""
        for bucket, entries in content:
            yield bucket, self._counted(entries)

    def _counted(self, entries: Entries) -> Entries:
        for key, value in entries:
            self.add(len(key) + len(value))
            yield key, value

    def _draw(self) -> None:
        share = min(1.0, self._done / self._total)
        bar = ("━" * int(share * BAR_CHARACTERS)).ljust(BAR_CHARACTERS)
        rate = self._done / max(1e-3, time.monotonic() - self._started)
        sys.stderr.write(
            f"\r\033[K{self._what} {bar} {share:4.0%}  {human_bytes(self._done)}"
            f"  {human_bytes(int(rate))}/s"
        )
        sys.stderr.flush()
