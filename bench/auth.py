"""Measure the cost of authentication: etcd and Kvorum with it, Kvorum without it and under logins.

The load is that of `bench.server`, by a user with a hundred grants, one of which covers its keys.
A ratio above 1 is in Kvorum's favour; other lines compare Kvorum with itself: with and without
authentication, and with and without a flood of logins. Run it as `make bench-auth`.
"""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from google.protobuf.message import Message

from bench.load import Load, call, fill
from bench.server import PUT, RANGE, TXN, VALUE, key, linearizable, put, serializable, txn
from bench.servers import Server, running
from bench.table import Row, compared, header, keep
from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.etcdserverpb import (
    AuthEnableRequest,
    AuthenticateRequest,
    AuthenticateResponse,
    AuthRoleAddRequest,
    AuthRoleGrantPermissionRequest,
    AuthUserAddRequest,
    AuthUserGrantRoleRequest,
)

AUTH = "/etcdserverpb.Auth/"
USER, PASSWORD = "bench", "a password"
GRANTS = 100
KEYS = 1000
LOAD_PROCESSES = 4
LOGINS_AT_ONCE = 100

SCENARIOS = (
    ("put, 256 B", PUT, put),
    ("txn, compare and put", TXN, txn),
    ("linearizable range of a key", RANGE, linearizable),
    ("serializable range of a key", RANGE, serializable),
)


def protect(server: Server) -> None:
    """Enable authentication, with a user that may access the keys of the load."""

    def ask(name: str, request: Message) -> None:
        call(server.address, AUTH + name, request.SerializeToString())

    ask("UserAdd", AuthUserAddRequest(name="root", password=PASSWORD))
    ask("UserGrantRole", AuthUserGrantRoleRequest(user="root", role="root"))
    ask("RoleAdd", AuthRoleAddRequest(name=USER))
    for number in range(GRANTS):
        start = key(number * 1_000_000)
        granted = Permission(
            permType=Permission.READWRITE, key=start, range_end=key(number * 1_000_000 + KEYS)
        )
        ask("RoleGrantPermission", AuthRoleGrantPermissionRequest(name=USER, perm=granted))
    ask("UserAdd", AuthUserAddRequest(name=USER, password=PASSWORD))
    ask("UserGrantRole", AuthUserGrantRoleRequest(user=USER, role=USER))
    ask("AuthEnable", AuthEnableRequest())


def login() -> bytes:
    """Return an Authenticate request."""
    return AuthenticateRequest(name=USER, password=PASSWORD).SerializeToString()


class Client:
    """The user's load on one server, with a token if authentication is enabled."""

    def __init__(self, server: Server, *, is_protected: bool) -> None:
        self.name = server.name
        self.server = server
        self._headers: tuple[tuple[str, str], ...] = ()
        if is_protected:
            answer = call(server.address, AUTH + "Authenticate", login())
            self._headers = (("token", AuthenticateResponse.FromString(answer).token),)

    def load(self, path: str, messages: list[bytes], seconds: int) -> Load:
        """Start a load of a thousand concurrent requests."""
        return Load(
            self.server.address,
            path,
            messages,
            connections=20 // LOAD_PROCESSES,
            streams=50,
            seconds=seconds,
            headers=self._headers,
        )

    def check(self, path: str, message: bytes) -> None:
        """Make one request; raises grpc.RpcError if the server refuses it."""
        call(self.server.address, path, message, self._headers)


class Flooded(Client):
    """A client whose load runs beside a hundred concurrent logins."""

    def load(self, path: str, messages: list[bytes], seconds: int) -> Load:
        """Start the load and the logins."""
        self.flood = Load(
            self.server.address,
            AUTH + "Authenticate",
            [login()],
            connections=10,
            streams=LOGINS_AT_ONCE // 10,
            seconds=seconds,
        )
        return super().load(path, messages, seconds)


def run(rounds: int, seconds: int) -> list[Row]:
    """Compare all servers in all scenarios."""
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd = stack.enter_context(running("etcd", directory))
        ours = stack.enter_context(running("kvorum", directory))
        beside = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        unprotected = stack.enter_context(running("kvorum", beside))
        for server in (etcd, ours, unprotected):
            fill(server.address, ((key(number), VALUE) for number in range(KEYS)))
        for server in (etcd, ours):
            protect(server)
        theirs = Client(etcd, is_protected=True)
        mine = Client(ours, is_protected=True)
        free = Client(unprotected, is_protected=False)
        for name, path, make in SCENARIOS:
            messages = [make(key(number)) for number in range(LOAD_PROCESSES)]

            def rate(client: Client, path: str = path, messages: list[bytes] = messages) -> float:
                client.check(path, messages[0])
                return client.load(path, messages, seconds).finish().requests_per_second

            rows.append(compared("protected", name, "/s", (theirs, mine), rounds, 2.0, rate))
            rows.append(compared("to unprotected", name, "/s", (free, mine), rounds, 0.8, rate))
        messages = [put(key(number)) for number in range(LOAD_PROCESSES)]

        def puts(client: Client) -> float:
            found = client.load(PUT, messages, seconds).finish().requests_per_second
            if isinstance(client, Flooded):
                logins = client.flood.finish().requests_per_second
                print(f"  {logins:.1f} logins a second meanwhile")
            return found

        flooded = Flooded(ours, is_protected=True)
        rows.append(compared("login flood", "put, 256 B", "/s", (mine, flooded), rounds, 0.9, puts))
    return rows


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    arguments = parser.parse_args()
    header()
    keep(run(arguments.rounds, arguments.seconds), "auth")


if __name__ == "__main__":
    main()
