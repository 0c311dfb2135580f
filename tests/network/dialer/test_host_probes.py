"""Knocks: whether the host that carries a request is there."""

import socket
from collections.abc import Iterator

import pytest

from kvorum.network.tls.credentials import DialSettings
from tests.network.dialer.dialing import COMPLETED, FAILED, REFUSED, Dialing
from tests.waiting import WAIT_SECONDS_MAX


@pytest.fixture
def dialing() -> Iterator[Dialing]:
    made = Dialing(DialSettings(), WAIT_SECONDS_MAX)
    yield made
    made.close()


def test_a_host_answers_probes_whatever_its_processes_do(dialing: Dialing) -> None:
    dialer = dialing.dialer
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Nobody accepts or reads anything there.
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        number = dialer.request(url, "GET", "/", [], b"")
        dialing.until(lambda: bool(dialer._connections))
        probe_host = dialer.probe_host(number)
        assert dialing.next(probe_host) == (COMPLETED, probe_host, None)
        accepted, _ = server.accept()
    with accepted:
        probe_host = dialer.probe_host(number)
        assert dialing.next(probe_host) == (REFUSED, probe_host, None), "nobody listens any more"
    assert dialing.failure(number)
    probe_host = dialer.probe_host(number)
    assert dialing.next(probe_host) == (FAILED, probe_host, "no host"), "the request has ended"


def test_a_host_that_is_silent_gives_no_answer() -> None:
    """Its kernel drops what does not fit into the queue of connections, as a silent one would."""
    dialing = Dialing(DialSettings(), WAIT_SECONDS_MAX)
    dialer = dialing.dialer
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        number = dialer.request(url, "GET", "/", [], b"")
        dialing.until(lambda: bool(dialer._connections))
        # Only the probes are not to take long.
        dialer._connect_seconds_max = 0.05
        probe_host = dialer.probe_host(number)
        assert dialing.next(probe_host) == (FAILED, probe_host, None)
        dialer.probe_host(number)
        dialing.close()
    assert not dialing.errors
