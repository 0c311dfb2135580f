"""A line on the terminal that shows progress; nothing where there is no terminal."""

import sys
import time
from collections.abc import Callable
from typing import Self

from kvorum.tools.cli.text import human_bytes

DRAW_SECONDS = 0.1
BAR_CHARACTERS = 30


def human_count(count: int) -> str:
    """Return a number as people read it: `12,345`."""
    return f"{count:,}"


class ProgressLine:
    """Counts towards a total and redraws a progress line while the block lasts."""

    def __init__(
        self,
        what: str,
        total: int = 0,
        shown: Callable[[int], str] = human_bytes,
        *,
        is_drawn: bool = True,
    ) -> None:
        """Count towards a total, which is 0 while it is unknown; `shown` formats a count."""
        self._what = what
        self._total = total
        self._shown = shown
        self._done = 0
        self._started = time.monotonic()
        self._draw_at = self._started
        self._is_drawn = is_drawn and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            self._draw()
            sys.stderr.write("\n")

    def add(self, count: int, remaining: int | None = None) -> None:
        """Add to the count; raise the total if `remaining` shows that it is higher."""
        self._done += count
        if remaining is not None:
            self._total = max(self._total, self._done + remaining)
        if self._is_drawn:
            now = time.monotonic()
            if now >= self._draw_at:
                self._draw_at = now + DRAW_SECONDS
                self._draw()

    def _draw(self) -> None:
        rate = self._done / max(1e-3, time.monotonic() - self._started)
        parts = [self._what]
        if self._total:
            share = min(1.0, self._done / self._total)
            bar = ("━" * int(share * BAR_CHARACTERS)).ljust(BAR_CHARACTERS)
            parts.append(f"{bar} {share:4.0%}")
        parts.append(f" {self._shown(self._done)}  {self._shown(int(rate))}/s")
        left = self._total - self._done
        if left > 0 and rate > 0:
            minutes, seconds = divmod(int(left / rate), 60)
            parts.append(f" {minutes}:{seconds:02} left")
        sys.stderr.write(f"\r\033[K{' '.join(parts)}")
        sys.stderr.flush()
