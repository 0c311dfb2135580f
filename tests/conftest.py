"""What all tests share: properties are about results, never about the time they take.

`make test` draws the same examples each time, as it runs the same seeds, so that its result depends
on the change alone. `make properties` draws others.
"""

import signal

import pytest
from hypothesis import HealthCheck, settings

from tools import etcds

settings.register_profile(
    "kvorum", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("random", settings.get_profile("kvorum"), derandomize=False)
settings.load_profile("kvorum")


def pytest_configure() -> None:
    """Hear interruptions: in the background all that tests start would ignore them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
