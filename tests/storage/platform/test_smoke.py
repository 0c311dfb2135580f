"""What must work on every system that a member runs on.

`test_removal.py` runs these tests without Linux's own calls, and the workflow of macOS runs them
there.
"""

import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from kvorum import Client
from kvorum.embed import Config, Server
from kvorum.storage.platform.processes import PROC
from kvorum.testing import Cluster
from tests.kvorum import running_kvorum
from tests.proxy.processes import running_proxy
from tests.waiting import until

pytestmark = pytest.mark.long
TOOLS = Path(sys.executable).parent


def test_a_member_serves_and_survives_a_kill(tmp_path: Path) -> None:
    data, saved = tmp_path / "data", tmp_path / "saved.db"
    with running_kvorum(data) as server, Client(server.address) as client:
        with client.watch(prefix="key/") as watch:
            for number in range(100):
                client.put(f"key/{number}", "value" * 1000)
            assert next(watch).key == b"key/0"
        lease = client.lease(1)
        client.put("short", "lived", lease=lease.id)
        until("the lease expires", lambda: client.get("short") is None)
        with urlopen(f"http://{server.address}/metrics") as answer:
            metrics = answer.read().decode()
        assert "\nprocess_cpu_seconds_total " in metrics and "\nprocess_open_fds " in metrics
        assert ("\nprocess_resident_memory_bytes " in metrics) == PROC.exists()
        save = [f"--endpoints={server.address}", "snapshot", "save", str(saved)]
        subprocess.run([str(TOOLS / "kvorumctl"), *save], check=True)
        server.process.kill()
    subprocess.run([str(TOOLS / "kvorumutl"), "snapshot", "status", str(saved)], check=True)
    with running_kvorum(data) as server, Client(server.address) as client:
        assert client.count(prefix="key/") == 100
        found = client.get("key/99")
        assert found is not None and found.text == "value" * 1000


def test_members_survive_each_other(kvorum_cluster: Cluster) -> None:
    leader = kvorum_cluster.leader()
    kvorum_cluster.client(leader).put("before", "the kill")
    kvorum_cluster.kill(leader)
    client = kvorum_cluster.client(*kvorum_cluster.followers())
    client.put("after", "the kill")
    kvorum_cluster.restart(leader)
    kvorum_cluster.settle()
    assert kvorum_cluster.client(leader).count(prefix="") == 2


@pytest.mark.parametrize("command", ["gateway", "grpc-proxy"])
def test_proxies_pass_on(command: str, tmp_path: Path) -> None:
    large = "value" * 100_000
    with (
        running_kvorum(tmp_path) as server,
        running_proxy(command, f"--endpoints={server.address}") as proxy,
        Client(proxy.address) as client,
    ):
        client.put("key", large)
        found = client.get("key")
        assert found is not None and found.text == large


def test_a_member_lives_in_a_program() -> None:
    with Server(Config(ephemeral=True)) as server, server.client() as client:
        client.put("key", "value")
        assert client.count(prefix="") == 1
