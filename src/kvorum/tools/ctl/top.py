"""`top`: show the activity of the members live.

On a terminal, each sample redraws a table, until q is pressed; otherwise each sample is a line of
JSON. Rates and latencies cover the time since the previous sample.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.terminal import aligned, is_terminal, painted
from kvorum.tools.cli.text import human_bytes, printable
from kvorum.tools.ctl.connecting import endpoints_of
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.lines import line_of
from kvorum.tools.ctl.samples import MemberSample, Sampler, as_json

ENTER = "\033[?1049h\033[?25l"
LEAVE = "\033[?25h\033[?1049l"
"""Switch to the alternate screen and hide the cursor; switch back."""
ANSWER_SECONDS_MIN = 1.0
"""The time for a member to answer, unless the interval is longer."""
_HEADS = (
    *("endpoint", "role", "version", "term", "index", "lag", "db", "used"),
    *("put/s", "range/s", "txn/s", "call/s", "req p50", "p99", "fsync p99", "commit p99"),
    *("watchers", "memory"),
)


def top(invocation: CtlInvocation) -> None:
    """Show the activity of the members."""
    interval, count = invocation.seconds("interval"), invocation.number("count")
    if invocation.arguments:
        raise CommandError("top command takes no arguments", BAD_ARGUMENTS)
    if interval <= 0 or count < 0:
        raise CommandError("--interval must be more than 0, and --count 0 or more", BAD_ARGUMENTS)
    output = invocation.output
    output.check("simple", "json")
    seconds_max = min(invocation.seconds("command-timeout"), max(ANSWER_SECONDS_MIN, interval))
    with invocation.client() as client:
        samples = iterate_samples(
            Sampler(invocation, client, _endpoints(invocation, client), seconds_max)
        )
        if is_terminal() and output.form == "simple":
            with _screen() as wait_key:
                _show(samples, wait_key, interval, count)
            return
        for number, sample in enumerate(samples, 1):
            output.write(line_of(sample))
            output.flush()
            if number == count:
                return
            time.sleep(interval)


def _endpoints(invocation: CtlInvocation, client: Client) -> list[str]:
    if not invocation.switch("cluster"):
        return endpoints_of(invocation)
    members = client.members.list(timeout=invocation.seconds("command-timeout"))
    return [url for member in members for url in member.client_urls]


def iterate_samples(sampler: Sampler) -> Iterator[dict[str, Any]]:
    """Sample the cluster again and again, and yield each sample for JSON."""
    before: dict[str, MemberSample] = {}
    while True:
        samples = sampler.sample_all()
        known = [each.status for each in samples if each.status is not None]
        index_max = max((each.raft_index for each in known), default=0)
        leader = next((each.leader for each in known if each.leader), 0)
        yield {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "leader": f"{leader:x}" if leader else None,
            "revision": max((each.revision for each in known), default=None),
            "leases": sampler.count_leases() if known else None,
            "members": [as_json(each, before.get(each.endpoint), index_max) for each in samples],
        }
        before = {each.endpoint: each for each in samples}


# On a terminal.


@contextmanager
def _screen() -> Iterator[Callable[[float], str]]:
    """Take the whole screen; yield a function that waits for a key, and returns it or ""."""
    import termios
    import tty

    has_keys = sys.stdin.isatty()
    before = termios.tcgetattr(0) if has_keys else None

    def wait_key(seconds: float) -> str:
        ready, _, _ = select.select([0] if has_keys else [], [], [], seconds)
        return os.read(0, 1).decode("latin-1") if ready else ""

    sys.stdout.write(ENTER)
    try:
        if has_keys:
            tty.setcbreak(0)
        yield wait_key
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def _show(
    samples: Iterator[dict[str, Any]], wait_key: Callable[[float], str], interval: float, count: int
) -> None:
    for number, sample in enumerate(samples, 1):
        _draw(sample)
        if number == count:
            return
        until = time.monotonic() + interval
        while (seconds := until - time.monotonic()) > 0:
            if wait_key(seconds) in ("q", "Q"):
                return


def _draw(sample: Mapping[str, Any]) -> None:
    columns, lines_max = os.get_terminal_size(1)
    head = (
        f"kvorumctl top  {sample['time'][11:19]} UTC   leader {sample['leader'] or 'unknown'}   "
        f"revision {_shown(sample['revision'])}   leases {_shown(sample['leases'])}   q ends"
    )
    members = sample["members"]
    up = [each for each in members if each["is_up"]]
    heads, *rows = aligned(_HEADS, map(_row, up), right=range(3, len(_HEADS)))
    lines = [painted(head[:columns], "bold"), "", painted(heads[:columns], "cyan")]
    for member, row in zip(up, rows, strict=True):
        lines.append(painted(row[:columns], "green") if member["is_leader"] else row[:columns])
    for member in members:
        for problem in (*member.get("errors", ()), member.get("problem")):
            if problem:
                text = printable(f"{member['endpoint']}: {problem}")
                lines.append(painted(text[:columns], "red"))
    shown = "\033[K\r\n".join(lines[: lines_max - 1])
    sys.stdout.write(f"\033[H{shown}\033[K\033[J")
    sys.stdout.flush()


def _row(member: Mapping[str, Any]) -> tuple[str, ...]:
    role = "leader" if member["is_leader"] else "learner" if member["is_learner"] else "follower"
    size, used = member["database_bytes"], member["database_bytes_used"]
    memory = member["memory_bytes"]
    return (
        printable(member["endpoint"]),
        role,
        printable(member["version"]),
        str(member["raft_term"]),
        str(member["raft_index"]),
        str(member["raft_lag"]),
        human_bytes(size),
        f"{used * 100 // size}%" if size else "",
        *(_shown(member[f"{name}_per_second"]) for name in ("puts", "ranges", "txns", "calls")),
        *(
            _milliseconds(member[f"{name}_seconds"])
            for name in ("request_p50", "request_p99", "fsync_p99", "commit_p99")
        ),
        _shown(member["watchers"]),
        "-" if memory is None else human_bytes(memory),
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
