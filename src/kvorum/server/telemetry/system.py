"""The metrics of the process itself, read from the operating system."""

import os
import resource
from collections.abc import Iterator

from kvorum.server.telemetry.exposition import Sample
from kvorum.server.telemetry.peer_metrics import Shown
from kvorum.storage.platform.processes import boot_time, count_descriptors, read_proc

UNLIMITED_BYTES = 2.0**64
"""The value that stands for no limit, as in Go's library."""


def shown() -> Iterator[Shown]:
    """Return the metrics of the process."""
    for name, value in _values():
        yield name, [Sample(value)]


def _values() -> Iterator[tuple[str, float]]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield "os_fd_limit", limit
    yield "process_max_fds", limit
    used = count_descriptors()
    if used is not None:
        yield "os_fd_used", used
        yield "process_open_fds", used
    spent = resource.getrusage(resource.RUSAGE_SELF)
    yield "process_cpu_seconds_total", spent.ru_utime + spent.ru_stime
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_limited = address_space != resource.RLIM_INFINITY
    yield "process_virtual_memory_max_bytes", address_space if is_limited else UNLIMITED_BYTES
    yield from _memory_and_start()
    yield from _network_bytes()


def _memory_and_start() -> Iterator[tuple[str, float]]:
    """Return what only /proc tells; nothing without it."""
    text = read_proc("self/stat")
    if text is not None:
        # The fields after the process name, which is in parentheses and may contain anything.
        fields = text.rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        yield "process_start_time_seconds", boot_time() + started
        yield "process_virtual_memory_bytes", int(fields[20])
        yield "process_resident_memory_bytes", int(fields[21]) * resource.getpagesize()


def _network_bytes() -> Iterator[tuple[str, float]]:
    """Return the bytes that the network namespace received and sent; nothing without /proc.

    The file has the names of its fields in one row, and their values in the next.
    """
    text = read_proc("self/net/netstat")
    if text is not None:
        rows = [line.split() for line in text.splitlines()]
        names, values = (row for row in rows if row[0] == "IpExt:")
        found = dict(zip(names[1:], map(int, values[1:]), strict=True))
        yield "process_network_receive_bytes_total", found["InOctets"]
        yield "process_network_transmit_bytes_total", found["OutOctets"]
