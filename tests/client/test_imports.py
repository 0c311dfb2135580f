"""What a program imports of Kvorum costs no more than it uses, and has one place."""

import subprocess
import sys

import kvorum.client

SERVER = {"backend", "edge", "lease", "member", "mvcc", "net", "process", "raft", "rpc", "server"}


def imported(statement: str) -> set[str]:
    """Return the modules that a new process has after a statement."""
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_the_package_alone_is_cheap() -> None:
    found = imported("import kvorum")
    costly = {"asyncio", "ctypes", "google.protobuf", "hashlib", "importlib.resources", "ssl"}
    assert not found & costly


def test_a_client_imports_no_server_and_not_the_other_client() -> None:
    for name, others in (("Client", {"asyncio"}), ("AsyncClient", {"kvorum.client.sync"})):
        found = imported(f"from kvorum import {name}")
        rooms = {module.split(".")[1] for module in found if module.startswith("kvorum.")}
        assert not rooms & SERVER
        assert rooms <= {"api", "client", "compiled"}
        assert not found & (others | {"bcrypt", "cryptography", "grpc", "h2", "lmdb", "uvloop"})


def test_a_client_for_threads_loads_nothing_that_a_read_does_not_need() -> None:
    found = imported("from kvorum import Client; Client('localhost:2379').close()")
    costly = {"google.protobuf", "hpack", "importlib.resources", "inspect", "ssl", "urllib.parse"}
    assert not found & costly


def test_every_public_name_is_there() -> None:
    for name in kvorum.client.__all__:
        assert getattr(kvorum.client, name) is not None, name
    assert kvorum.Client is kvorum.client.Client
    assert kvorum.AsyncClient is kvorum.client.AsyncClient


def test_every_error_is_public() -> None:
    kinds = [kvorum.client.KvorumError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    ours = {kind.__name__ for kind in kinds if kind.__module__ == "kvorum.client.errors"}
    assert ours <= set(kvorum.client.__all__)
