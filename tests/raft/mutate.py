"""Breaks the rules of Raft one at a time, in memory, and asks whether a test notices.

Run as `python -m tests.raft.mutate`, or with names of mutations to run only those. Each one
replaces one line of the core while it is imported, in a process of its own; no file changes. The
scenario files of etcd's library are left out: our own tests must suffice.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

from tests.raft.election_mutations import ELECTION_MUTATIONS
from tests.raft.mutations import MUTATIONS, Mutation

TESTS = Path(__file__).parent
SOURCE = Path(__file__).parents[2] / "src" / "kvorum" / "raft"
EVERY_MUTATION = [*ELECTION_MUTATIONS, *MUTATIONS]
WORKERS = 2
# Quick, and enough for most; the others run only if these notice nothing.
FIRST = ["test_rules.py", "test_rules_of_storage.py", "test_scenarios.py", "test_log.py"]


class Mutator(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the core with its line replaced."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        self.name = f"kvorum.raft.{mutation.module}"

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        path = SOURCE / f"{self.mutation.module}.py"
        text = path.read_text()
        assert text.count(self.mutation.line) == 1, f"{self.mutation.name} does not fit {path}"
        mutated = text.replace(self.mutation.line, self.mutation.instead)
        exec(compile(mutated, str(path), "exec"), module.__dict__)


def test_files() -> tuple[list[str], list[str]]:
    rest = sorted(path for path in TESTS.glob("test_*.py") if path.name not in FIRST)
    return [str(TESTS / name) for name in FIRST], [str(path) for path in rest]


def run_tests(mutation: Mutation | None) -> int:
    """Run the tests in this process; return pytest's exit code."""
    if mutation is not None:
        sys.meta_path.insert(0, Mutator(mutation))
    os.environ["KVORUM_RAFT_SCENARIOS"] = "none"
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    # A broken rule may make a loop endless.
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=60", "--tb=no"]
    # hypothesis was imported before the fork, which saves its time in every child.
    options.append("-Wignore::pytest.PytestAssertRewriteWarning")
    hypothesis.settings.register_profile("mutate", derandomize=True, database=None)
    hypothesis.settings.load_profile("mutate")
    first, rest = test_files()
    return int(pytest.main([*options, *first])) or int(pytest.main([*options, *rest]))


def start(mutation: Mutation | None) -> int:
    """Run the tests in a process of its own; return its id."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = run_tests(mutation)
        finally:
            os._exit(code)
    return child


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    chosen = [each for each in EVERY_MUTATION if each.name in sys.argv[1:] or not sys.argv[1:]]
    began = time.monotonic()
    if os.waitstatus_to_exitcode(os.waitpid(start(None), 0)[1]) != 0:
        say("the tests fail without any mutation")
        return 1
    waiting = list(reversed(chosen))
    running: dict[int, Mutation] = {}
    survived = []
    while waiting or running:
        while waiting and len(running) < WORKERS:
            mutation = waiting.pop()
            running[start(mutation)] = mutation
        child, status = os.waitpid(-1, 0)
        mutation = running.pop(child)
        code = os.waitstatus_to_exitcode(status)
        # 1: a test failed. 2: interrupted, as by an error while the tests are imported.
        caught = code in (1, 2)
        if not caught:
            survived.append(mutation.name)
        say(f"{'caught' if caught else f'SURVIVED ({code})':<14} {mutation.name}")
    seconds = time.monotonic() - began
    say(f"{len(chosen) - len(survived)} of {len(chosen)} caught in {seconds:.0f} s")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
