"""Runs of pytest inside of tests, in which the plugin is there as it is where it is installed."""

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import kvorum

Run = Callable[..., pytest.RunResult]

COROUTINES = """
import asyncio
import inspect

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    # As plugins for asyncio do: coroutines are run by a loop that outlives their fixtures.
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    runner = asyncio.Runner()
    pyfuncitem.session.config.add_cleanup(runner.close)
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
"""


def loading() -> tuple[str, ...]:
    """Return the arguments that load the plugin, where it is not installed."""
    is_installed = any(each.name == "kvorum" for each in entry_points(group="pytest11"))
    return () if is_installed else ("-p", "kvorum.testing.plugin")


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run pytest on files that a test has made, in a process of its own.

    Whatever it starts has a temporary directory of its own, which is empty afterwards.
    """
    sources = str(Path(kvorum.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")]))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")

    def run(*arguments: str) -> pytest.RunResult:
        result = pytester.runpytest_subprocess(
            *loading(), "-p", "no:cacheprovider", "--basetemp=basetemp", *arguments
        )
        assert list(temporary.iterdir()) == []
        return result

    return run
