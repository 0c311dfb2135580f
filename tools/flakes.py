"""Run `make test` many times and list every test that failed even once: `make flakes RUNS=20`.

Every second run has two busy processes beside it: on two cores, all servers and tests must then
wait for a processor at any point, as on a shared machine for continuous integration. `.flakes/`
keeps the output of each run, including each failed test's output; the seed in the test's name, or
Hypothesis' report, then reproduces the failure.
"""

import argparse
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
BUSY_PROCESSES = 2
# Pytest's short summary has such a line for each test that did not pass.
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\n]*?)?)(?: - .*)?$", re.M)
# A failed test's output starts below a title with its name and ends at the next title.
REPORT = re.compile(r"^_{3,} (?:ERROR (?:at \w+ of|collecting) )?(.+?) _{3,}$", re.M)
REPORTS_END = re.compile(r"^={3,} (?:short test summary|warnings summary)", re.M)
COUNTS = re.compile(r"^=* ?(\d[^\n]* in \d[^\n]*?)(?: =*)?$", re.M)


class Run(NamedTuple):
    """One run; `failures` holds the output of each failed test."""

    number: int
    is_busy: bool
    seconds: float
    code: int
    failures: dict[str, str]
    counts: str
    log: Path

    def line(self) -> str:
        """Return a summary of the run on one line."""
        beside = f"beside {BUSY_PROCESSES} busy processes" if self.is_busy else "alone"
        verdict = "green" if self.code == 0 else f"RED (exit code {self.code})"
        return f"run {self.number:2} {beside}: {verdict}, {self.seconds:.0f} s; {self.counts}"


def failures(output: str) -> dict[str, str]:
    """Return the failed tests, each with its output."""
    reports: dict[str, str] = {}
    for title in REPORT.finditer(output):
        after = (pattern.search(output, title.end()) for pattern in (REPORT, REPORTS_END))
        end = min((each.start() for each in after if each), default=len(output))
        reports.setdefault(title[1], output[title.start() : end])
    found = {}
    for test in FAILED.findall(output):
        # A title has the test's class and name, which the node id has after its file.
        title = test.partition("::")[2].replace("::", ".") or test
        found[test] = reports.get(title, "")
    return found


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep this many processors busy within the block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(number: int, command: list[str], directory: Path) -> Run:
    """Run the command once, with its output in a file."""
    is_busy = number % 2 == 0
    log = directory / f"run-{number}.log"
    begun = time.monotonic()
    with log.open("w") as file, busy(BUSY_PROCESSES if is_busy else 0):
        code = subprocess.run(
            command, cwd=REPOSITORY, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    output = log.read_text(errors="replace")
    counts = "; ".join(COUNTS.findall(output)) or "no test ran"
    return Run(number, is_busy, time.monotonic() - begun, code, failures(output), counts, log)


def main() -> int:
    """Do the runs that the command line requests; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=REPOSITORY / ".flakes")
    parser.add_argument("command", nargs="*", default=["make", "--no-print-directory", "test"])
    arguments = parser.parse_args()
    arguments.directory.mkdir(exist_ok=True)
    runs = []
    for number in range(1, arguments.runs + 1):
        runs.append(run(number, arguments.command, arguments.directory))
        print(runs[-1].line(), flush=True)
        for test in runs[-1].failures:
            print(f"  {test}", flush=True)
    green = sum(each.code == 0 for each in runs)
    print(f"\n{green} of {len(runs)} runs are green.")
    failed: defaultdict[str, list[Run]] = defaultdict(list)
    for each in runs:
        for test in each.failures:
            failed[test].append(each)
    for test, red in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"\n{test}\nfailed in {len(red)} of {len(runs)} runs: ", end="")
        print(", ".join(str(each.log) for each in red))
        print(red[0].failures[test])
    for each in runs:
        if each.code and not each.failures:
            print(f"\n{each.line()}\nno test failed; the output ends with:")
            print("\n".join(each.log.read_text(errors="replace").splitlines()[-20:]))
    return int(green < len(runs))


if __name__ == "__main__":
    sys.exit(main())
