"""Try what a Python has installed, with the commands beside it; the argument names what that is.

`server native compiled` and `server python python` name the edge and the core that must run, and
`client ADDRESS` asks a server elsewhere. tools/release/check.py runs this in empty environments.
"""

import asyncio
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from kvorum import AsyncClient, Client

BIN = Path(sys.executable).parent
FIXTURE = """
def test_of_a_user(kvorum_client):
    kvorum_client.put("hello", "world")
    assert kvorum_client.get("hello").text == "world"
"""
MEMBERS = 3
START_SECONDS_MAX = 60


def ask(command: str, *arguments: object) -> str:
    """Run a command that is installed; return its output."""
    words = [str(BIN / command), *map(str, arguments)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def start_member(
    number: int, peers: list[str], directory: Path
) -> tuple[subprocess.Popen[str], str]:
    """Start a member; return its process and its client URL."""
    address = f"http://127.0.0.1:{free_port()}"
    cluster = ",".join(f"m{each}={url}" for each, url in enumerate(peers))
    words = [BIN / ("etcd" if (BIN / "etcd").exists() else "kvorum"), "-name", f"m{number}"]
    words += ["-data-dir", directory / f"m{number}", "-log-level=warn", "-initial-cluster", cluster]
    words += ["-listen-client-urls", address, "-advertise-client-urls", address]
    words += ["-listen-peer-urls", peers[number], "-initial-advertise-peer-urls", peers[number]]
    return subprocess.Popen(list(map(str, words)), text=True, stderr=subprocess.PIPE), address


def try_client(address: str) -> None:
    """Write and read with both clients."""
    with Client(address, timeout=START_SECONDS_MAX) as client:
        client.put("threads", "1")
        found = client.get("threads")
        assert found is not None and found.text == "1"

    async def use() -> str:
        async with AsyncClient(address, timeout=START_SECONDS_MAX) as client:
            await client.put("asyncio", "2")
            found = await client.get("asyncio")
            return found.text if found is not None else ""

    assert asyncio.run(use()) == "2"


def try_server(edge: str, core: str) -> None:
    """Start three members, and use each command and the fixture."""
    version = ask("kvorum", "--version").splitlines()
    assert f"edge: {edge}" in version and f"core: {core}" in version, version
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(MEMBERS)]
        members = [start_member(number, peers, directory) for number in range(MEMBERS)]
        for process, _ in members:
            stack.callback(process.wait)
            stack.callback(process.terminate)
        addresses = [address for _, address in members]
        for address in addresses:
            try_client(address)
        endpoints = f"--endpoints={','.join(addresses)}"
        assert ask("kvorumctl", endpoints, "put", "hello", "world") == "OK\n"
        for address in addresses:
            assert ask("kvorumctl", f"--endpoints={address}", "get", "hello") == "hello\nworld\n"
        snapshot = directory / "snapshot.db"
        ask("kvorumctl", f"--endpoints={addresses[0]}", "snapshot", "save", snapshot)
        assert "revision" in ask("kvorumutl", "snapshot", "status", "-w", "json", snapshot)
        if (BIN / "etcd").exists():
            try_etcd(addresses[0])
        members[0][0].terminate()
        log = members[0][0].communicate()[1]
        assert ("pure Python edge" in log) is (edge == "python"), log
        assert ("uncompiled core" in log) is (core == "python"), log
        (directory / "test_of_a_user.py").write_text(FIXTURE)
        words = [sys.executable, "-m", "pytest", "-q", str(directory)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def try_etcd(address: str) -> None:
    """Use the commands that have etcd's names."""
    form = r"etcd Version: 3\.\d+\.\d+\nGit SHA: .+\nGo Version: .+\nGo OS/Arch: \w+/\w+\n"
    assert re.fullmatch(form, ask("etcd", "-version"))
    assert re.match(r"etcdctl version: 3\.\d+\.\d+\nAPI version: 3", ask("etcdctl", "version"))
    assert re.match(r"etcdutl version: 3\.\d+\.\d+\nAPI version: 3", ask("etcdutl", "version"))
    assert ask("etcdctl", f"--endpoints={address}", "get", "hello") == "hello\nworld\n"


def try_client_alone(address: str) -> None:
    """Use the clients, and ask for the server, which is not here."""
    try_client(address)
    told = ""
    try:
        import kvorum.embed  # noqa: F401
    except ModuleNotFoundError as error:
        told = str(error)
    assert "pip install kvorum" in told, told


if __name__ == "__main__":
    try_client_alone(sys.argv[2]) if sys.argv[1] == "client" else try_server(*sys.argv[2:])
