"""etcdutl and kvorumutl side by side: the same command lines, each in a directory of its own.

Both directories hold the same files, so what is printed is equal. Where etcdutl crashes, ours is to
end with an error; nothing else may differ but what is said on the standard error beside `Error:`.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvorum.tools.utl.main import run
from tests.children import limited
from tests.etcd import binary
from tests.tools.ctl.duel import Outcome, run_here
from tests.waiting import WAIT_SECONDS_MAX

CRASHES = (b"panic: ", b"fatal error: ")
CPU_SECONDS_MAX = 20
"""Seconds of a processor, after which the kernel kills a tool: how busy others are, or how slow the
machine is, does not count."""


class Duel:
    """Two tools, and a directory for each."""

    def __init__(self, directory: Path) -> None:
        self.theirs = directory / "theirs"
        self.ours = directory / "ours"
        for each in (self.theirs, self.ours):
            each.mkdir()

    def put(self, name: str, content: bytes) -> None:
        """Give both a file."""
        for each in (self.theirs, self.ours):
            (each / name).write_bytes(content)

    def copy(self, source: Path, name: str) -> None:
        """Give both a copy of a file or directory, in place of what has the name."""
        for each in (self.theirs, self.ours):
            target = each / name
            if target.is_dir():
                shutil.rmtree(target)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)

    def both(self, *words: str) -> tuple[Outcome, Outcome]:
        """Run a command line in both tools; return etcdutl's outcome and ours."""
        with inside(self.ours):
            ours = run_here(list(words), tool=run)
        return self.etcdutl(*words), ours

    def etcdutl(self, *words: str) -> Outcome:
        """Run a command line in etcdutl; one that does not end on a damaged file has crashed."""
        done = subprocess.run(
            limited([str(binary("etcdutl")), *words], f"-t {CPU_SECONDS_MAX}"),
            cwd=self.theirs,
            capture_output=True,
            timeout=WAIT_SECONDS_MAX,
            env={},
            check=False,
        )
        if done.returncode == -signal.SIGKILL:
            return Outcome(2, b"", CRASHES[0] + b"it goes on for ever")
        return Outcome(done.returncode, done.stdout, done.stderr)

    def compare(self, *words: str, has_same_error: bool = True) -> Outcome:
        """Run a command line in both tools, demand the same outcome, return ours."""
        theirs, ours = self.both(*words)
        wanted, got = (theirs.code, theirs.out), (ours.code, renamed(ours.out))
        if theirs.code == 2 and any(each in theirs.err for each in CRASHES):
            assert ours.code in (1, 2) and not ours.out, (words, ours)
            assert errors_of(ours), (words, ours)
            return ours
        assert got == wanted, (words, ours, theirs)
        if has_same_error:
            assert errors_of(ours) == errors_of(theirs), (words, ours, theirs)
        else:
            assert bool(errors_of(ours)) == bool(errors_of(theirs)), (words, ours, theirs)
        return ours


@contextmanager
def inside(directory: Path) -> Iterator[None]:
    """Let relative paths begin in a directory for as long as the block takes."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def errors_of(outcome: Outcome) -> list[bytes]:
    """Return what is told as an error; logs, hints and usages are left out."""
    lines = renamed(outcome.err).splitlines()
    return [line for line in lines if line.startswith(b"Error: ")]


def renamed(data: bytes) -> bytes:
    """Let our tool be called as etcd's."""
    return data.replace(b"kvorumutl", b"etcdutl")
