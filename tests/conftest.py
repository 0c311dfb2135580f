"""What all tests share: properties are about results, never about the time they take.

`make test` draws the same examples each time, as it runs the same seeds, so that its result depends
on the change alone. `make properties` draws others.
"""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Generator
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from kvorum.testing import plugin
from tests.left_out import reason_of, summary
from tests.patching import refuse_patches_without_effect
from tests.servers import RUNNING
from tools import etcds

settings.register_profile(
    "kvorum",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    max_examples=25,
)
settings.register_profile(
    "random", settings.get_profile("kvorum"), derandomize=False, max_examples=200
)
settings.load_profile("kvorum")


pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Load our plugin, where it is not installed yet, guard patches, and hear interruptions.

    In the background, all that tests start would ignore them.
    """
    if not config.pluginmanager.has_plugin("kvorum"):
        config.pluginmanager.register(plugin, "kvorum")
    refuse_patches_without_effect()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the two million objects of modules and tests out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


KINDS = (*RUNNING, "embedded")
"""The servers that a test may be for, each by itself."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make a test that is for several kinds of servers at one of them, which its name decides.

    `make differential` sets KVORUM_KINDS=all: then it is made at each.
    """
    if os.environ.get("KVORUM_KINDS") == "all":
        return
    alike: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        callspec = getattr(item, "callspec", None)
        for kind in callspec.params.values() if callspec is not None else ():
            if kind in KINDS:
                before, _, after = item.nodeid.rpartition(kind)
                alike[f"{before}*{after}"].append(item)
                break
    left_out = {
        item
        for name, group in alike.items()
        for number, item in enumerate(group)
        if number != crc32(name.encode()) % len(group)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def old_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask etcd 3.5.1, whatever is available: later versions no longer have what is tested."""
    monkeypatch.setenv(etcds.CHOICE, "3.5.1")


def pytest_report_header() -> str:
    """Print which etcd is asked."""
    etcd = etcds.chosen()
    return (
        f"etcd: {etcd}, {etcd.programs}" if etcd else "etcd: none; tests that ask one are skipped"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what this machine lacks, so that no test is left out in silence."""
    lines = summary(map(reason_of, terminalreporter.getreports("skipped")))
    if lines:
        terminalreporter.section("left out")
        for line in lines:
            terminalreporter.write_line(line)
