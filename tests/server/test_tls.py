"""TLS as users meet it: the flags, etcdctl with certificates, and a real etcd beside it."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority, Pair
from tests.etcd import binary, running_etcd
from tests.kvorum import running_kvorum


class Place:
    """An authority, a server's and a client's certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", ["127.0.0.1"])
        self.client = self.authority.issue("root", purposes=["client"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


def etcdctl(url: str, *arguments: str, seconds: int = 3) -> tuple[int, str]:
    """Return etcdctl's exit status and everything it says."""
    done = subprocess.run(
        [
            str(binary("etcdctl")),
            f"--endpoints={url}",
            f"--dial-timeout={seconds}s",
            f"--command-timeout={seconds}s",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "ETCDCTL_API": "3"},
    )
    return done.returncode, done.stdout + done.stderr


def identity(place: Place, client: Pair | None, authority: Authority | None = None) -> list[str]:
    flags = [f"--cacert={(authority or place.authority).cert}"]
    if client is not None:
        flags += [f"--cert={client.cert}", f"--key={client.key}"]
    return flags


def security_flags(place: Place, *more: str) -> list[str]:
    return [
        f"--cert-file={place.server.cert}",
        f"--key-file={place.server.key}",
        f"--trusted-ca-file={place.authority.cert}",
        "--client-cert-auth",
        *more,
    ]


@contextmanager
def both(place: Place, tmp_path: Path, *more: str) -> Iterator[dict[str, str]]:
    """Run this server and a real etcd with the same flags; gives their ports."""
    flags = security_flags(place, *more)
    with (
        running_kvorum(tmp_path / "kvorum", *flags, scheme="https") as ours,
        running_etcd(tmp_path / "etcd", *flags, scheme="https") as theirs,
    ):
        yield {
            "kvorum": ours.address.rpartition(":")[2],
            "etcd": theirs.address.rpartition(":")[2],
        }


def test_etcdctl_with_certificates(place: Place, tmp_path: Path) -> None:
    with running_kvorum(tmp_path, *security_flags(place), scheme="https") as server:
        url = f"https://{server.address}"
        flags = identity(place, place.client)
        assert etcdctl(url, *flags, "put", "k", "v") == (0, "OK\n")
        assert etcdctl(url, *flags, "get", "k") == (0, "k\nv\n")
        status, output = etcdctl(url, *flags, "endpoint", "health")
        assert status == 0 and "is healthy" in output
        curl = ["curl", "-sS", "--cacert", str(place.authority.cert)]
        curl += ["--cert", str(place.client.cert), "--key", str(place.client.key)]
        done = subprocess.run([*curl, f"{url}/health"], capture_output=True, timeout=20, check=True)
        assert json.loads(done.stdout)["health"] == "true"
        assert any("serving client traffic securely" in line for line in server.lines)
        done = subprocess.run(
            [*curl, f"{url}/metrics"], capture_output=True, timeout=20, check=True
        )
        assert b'kvorum_edge_incidents_total{name="tls_handshakes_failed"} 0' in done.stdout


def gist(output: str) -> str:
    """Return what etcdctl says of a failure; which alert it was differs between versions of Go."""
    for line in output.splitlines():
        if line.startswith("{"):
            output = json.loads(line)["error"]
    return re.sub(r"(remote error: tls: )[a-z ]+", r"\1*", output.strip())


def test_failures_look_as_a_real_etcds(place: Place, tmp_path: Path) -> None:
    expired = place.authority.issue("late", days=-1, purposes=["client"])
    other = Authority(tmp_path / "other", "other")
    known = identity(place, place.client)
    cases = {
        "well": ("https://127.0.0.1", known),
        "no certificate": ("https://127.0.0.1", identity(place, None)),
        "expired": ("https://127.0.0.1", identity(place, expired)),
        "a stranger": ("https://127.0.0.1", identity(place, other.issue("root"))),
        "another authority": ("https://127.0.0.1", identity(place, place.client, other)),
        "plain text to TLS": ("http://127.0.0.1", []),
        "another name": ("https://localhost", known),
    }
    with both(place, tmp_path) as ports, ThreadPoolExecutor(4) as pool:
        futures = {
            (name, case): pool.submit(etcdctl, f"{url}:{port}", *flags, "get", "x")
            for name, port in ports.items()
            for case, (url, flags) in cases.items()
        }
        said = {
            key: (future.result()[0], gist(future.result()[1])) for key, future in futures.items()
        }
    for case in cases:
        assert said["kvorum", case] == said["etcd", case], case
    assert said["kvorum", "well"] == (0, "")
    assert "remote error: tls: *" in said["kvorum", "expired"][1]


def test_tls_at_a_plain_port_looks_as_a_real_etcds(place: Place, tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "kvorum") as ours,
        running_etcd(tmp_path / "etcd") as theirs,
        ThreadPoolExecutor(2) as pool,
    ):
        flags = identity(place, place.client)
        said = [
            pool.submit(etcdctl, f"https://{address}", *flags, "get", "x")
            for address in (ours.address, theirs.address)
        ]
        (status, text), (their_status, their_text) = (future.result() for future in said)
        assert status == their_status == 1
        assert gist(text) == gist(their_text)
