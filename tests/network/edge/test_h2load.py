"""The load generator of nghttp2: every one of thousands of requests is answered."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.network.edge.service import ECHO, WAIT_SECONDS, Service
from tests.network.edge.wire import message

pytestmark = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")

REQUESTS = {"python": 4_000, "native": 20_000}


def run(*arguments: str) -> str:
    done = subprocess.run(
        ["h2load", *arguments], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(output: str, count: int) -> None:
    totals = re.search(r"requests: (\d+) total.* (\d+) succeeded, (\d+) failed, (\d+) err", output)
    assert totals is not None, output
    assert [int(total) for total in totals.groups()] == [count, count, 0, 0], output
    statuses = re.search(r"status codes: (\d+) 2xx, 0 3xx, 0 4xx, 0 5xx", output)
    assert statuses is not None and int(statuses[1]) == count, output


def test_grpc_calls(service: Service, edge_kind: str, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(message(b"x" * 64))
    count = REQUESTS[edge_kind]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    options = ["-n", str(count), "-c", "20", "-m", "50", "-d", str(body), *headers]
    check(run(*options, f"http://{service.address}{ECHO}"), count)
    counters = service.remote.counters()
    assert counters["calls_received"] == counters["messages_sent"] == count
    assert counters["connections_accepted"] == 20


@pytest.mark.parametrize("protocol", ["--h1", "--no-tls-proto=h2c"])
def test_plain_requests(service: Service, edge_kind: str, tmp_path: Path, protocol: str) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * 64)
    count = REQUESTS[edge_kind] // 4
    options = ["-n", str(count), "-c", "20", "-m", "5", "-d", str(body), protocol]
    check(run(*options, f"http://{service.address}/echo"), count)


def test_large_bodies_under_flow_control(service: Service, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(bytes(300_000))
    options = ["-n", "60", "-c", "3", "-m", "10", "-d", str(body)]
    check(run(*options, f"http://{service.address}/echo"), 60)


def test_small_windows(service: Service, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(message(bytes(5_000)))
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    options = ["-n", "300", "-c", "3", "-m", "20", "-w", "8", "-W", "10", "-d", str(body)]
    check(run(*options, *headers, f"http://{service.address}{ECHO}"), 300)
