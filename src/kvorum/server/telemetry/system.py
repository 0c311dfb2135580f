"""The metrics of the process itself, read from the operating system."""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from kvorum.server.telemetry.exposition import Sample
from kvorum.server.telemetry.peer_metrics import Shown

UNLIMITED_BYTES = 2.0**64
"""The value that stands for no limit, as in Go's library."""


def shown() -> Iterator[Shown]:
    """Return the metrics of the process."""
    for name, value in _values():
        yield name, [Sample(value)]


def _values() -> Iterator[tuple[str, float]]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    yield "os_fd_limit", limit
    yield "os_fd_used", used
    yield "process_max_fds", limit
    yield "process_open_fds", used
    # The fields after the process name, which is in parentheses and may contain anything.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks, user, system, started = os.sysconf("SC_CLK_TCK"), fields[11], fields[12], fields[19]
    yield "process_cpu_seconds_total", (int(user) + int(system)) / ticks
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    yield "process_start_time_seconds", time.time() - since_boot + int(started) / ticks
    yield "process_virtual_memory_bytes", int(fields[20])
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_limited = address_space != resource.RLIM_INFINITY
    yield "process_virtual_memory_max_bytes", address_space if is_limited else UNLIMITED_BYTES
    yield "process_resident_memory_bytes", int(fields[21]) * resource.getpagesize()
    received, sent = _network_bytes()
    yield "process_network_receive_bytes_total", received
    yield "process_network_transmit_bytes_total", sent


def _network_bytes() -> tuple[int, int]:
    """Return the bytes that the network namespace received and sent.

    The file has the names of its fields in one row, and their values in the next.
    """
    rows = [line.split() for line in Path("/proc/self/net/netstat").read_text().splitlines()]
    names, values = (row for row in rows if row[0] == "IpExt:")
    found = dict(zip(names[1:], map(int, values[1:]), strict=True))
    return found["InOctets"], found["OutOctets"]
