"""Measure the peak memory and the processor time of a server's processes.

The kernel records the peak itself, and resets it on request, so nothing is sampled.
"""

import os
import re
from pathlib import Path

RESET_PEAK = "5"


def processes(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in path.read_text().split()]
            except OSError:
                continue
    return found


def _figure(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # The sum includes children that have ended.
    return sum(int(each) for each in fields[11:15]) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Measures the increase of memory and processor time since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, tuple[int, float]] = {}
        for each in processes(pid):
            Path(f"/proc/{each}/clear_refs").write_text(RESET_PEAK)
            self._before[each] = _figure(each, "VmRSS"), _seconds(each)

    def read(self) -> tuple[int, float] | None:
        """Return the peak of memory and the processor time; None if the server has ended."""
        peak, seconds = 0, 0.0
        for each in processes(self._pid):
            resident, spent = self._before.get(each, (0, 0.0))
            try:
                peak += max(0, _figure(each, "VmHWM") - resident)
                seconds += _seconds(each) - spent
            except OSError:
                if each == self._pid:
                    return None
        return peak, seconds
