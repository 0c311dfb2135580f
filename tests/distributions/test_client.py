"""The client alone: what it imports is its own or declared, and every system has it."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.embed import Config, Server
from tests.distributions.building import CLIENT, REPOSITORY

PACKAGE = REPOSITORY / "src" / "kvorum"
MODULES = {"hpack": "hpack", "protobuf": "google"}
"""The modules of what the client requires."""
OPTIONAL = {"cryptography", "dns"}
"""Imported where they are needed, in a `try` that has an answer to their absence."""
PROGRAM = """
import sys
import os, select, socket, time
# Windows makes a pair of other sockets.
pair, family = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda: pair(family)
for module, names in {
    select: "epoll poll kqueue POLLIN POLLOUT",
    os: "eventfd fork register_at_fork fdatasync posix_fallocate memfd_create sched_getaffinity"
    " O_DIRECTORY",
    socket: "AF_UNIX",
    time: "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime",
}.items():
    for name in names.split():
        module.__dict__.pop(name, None)

class Missing:
    def find_spec(self, fullname, path, target=None):
        if fullname.split(".")[0] in sys.argv[2].split():
            raise ModuleNotFoundError(fullname, name=fullname)

sys.meta_path.insert(0, Missing())
import asyncio
import kvorum
from kvorum import AsyncClient, Client

with Client(sys.argv[1]) as client, client.watch("a") as watch:
    client.put("a", "1")
    print(next(iter(watch)).value, client.get("a").text)

async def use():
    async with AsyncClient(sys.argv[1]) as client:
        await client.put("b", "2")
        return (await client.get("b")).text

print(asyncio.run(use()), client.__module__, kvorum.__file__)
try:
    import kvorum.embed
except ModuleNotFoundError as error:
    print(error)
"""


def files() -> Iterator[Path]:
    yield PACKAGE / "__init__.py"
    for room in ("api", "client"):
        yield from (PACKAGE / room).rglob("*.py")


def imports(path: Path) -> set[str]:
    """Return the first names of modules that a file imports, two names for our own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "kvorum" else {node.module}
    return {".".join(name.split(".")[: 1 + name.startswith("kvorum.")]) for name in found}


def test_the_client_imports_what_is_its_own_or_declared() -> None:
    required = {each.partition(">=")[0] for each in CLIENT["project"]["dependencies"]}
    assert required == set(MODULES)
    allowed = {*MODULES.values(), *OPTIONAL, *sys.stdlib_module_names}
    # `kvorum.compiled` is the server's; kvorum/__init__.py does without it.
    allowed |= {"kvorum.api", "kvorum.client", "kvorum.__version__"}
    strays = {(path.name, name) for path in files() for name in imports(path) - allowed}
    assert strays == {("__init__.py", "kvorum.compiled")}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Server(Config(ephemeral=True)) as server:
        yield server.client_url


def test_the_client_alone_works_on_a_system_that_lacks_much(address: str, tmp_path: Path) -> None:
    """Without its server, epoll, poll, eventfd, Unix sockets, and every package not required."""
    leave_out = shutil.ignore_patterns("__pycache__")
    for room in ("api", "client"):
        shutil.copytree(PACKAGE / room, tmp_path / "kvorum" / room, ignore=leave_out)
    shutil.copy(PACKAGE / "__init__.py", tmp_path / "kvorum")
    missing = "lmdb bcrypt uvloop cryptography greenlet rich dns h2 h11 yaml jwt wsproto"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address, missing],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen, *_, refused = done.stdout.splitlines()
    assert seen == "b'1' 1", done.stdout
    assert str(tmp_path) in done.stdout
    assert "no module kvorum.embed" in refused and "'pip install kvorum'" in refused
