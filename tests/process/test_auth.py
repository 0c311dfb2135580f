"""Authentication of a whole server: who calls over TLS, its own work, and what it never tells."""

import base64
import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.certificates import Authority, Pair, trusting
from tests.cluster.client import Client, Metadata
from tests.kvorum import Kvorum, command, running_kvorum
from tests.process.clients import SecureClient
from tests.state.auth.keys import SECRET, private_key, public_pem
from tests.state.auth.keys import tokens as signed_tokens
from tests.waiting import WAIT_SECONDS_MAX, until

PUT_A = pb.PutRequest(key=b"a")
READ_A = pb.RangeRequest(key=b"a")
STATUS = pb.StatusRequest()
USERS = pb.AuthUserListRequest()
QUICK = ("--bcrypt-cost=4", "--unsafe-no-fsync")


def succeed(client: Client, name: str, request: Message, metadata: Metadata = ()) -> Any:
    answer = client.ask(name, request, metadata=metadata)
    assert not isinstance(answer, Status), f"{name}: {answer}"
    return answer


def shown(token: str) -> Metadata:
    return (("token", token),)


def prepare(client: Client) -> None:
    """Make users `root` and `u`, who may read and write [a, b), and enable authentication."""
    for name in ("root", "u"):
        succeed(client, "Auth/UserAdd", pb.AuthUserAddRequest(name=name, password=f"{name}-secret"))
    succeed(client, "Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="root", role="root"))
    succeed(client, "Auth/RoleAdd", pb.AuthRoleAddRequest(name="r"))
    permission = Permission(permType=Permission.READWRITE, key=b"a", range_end=b"b")
    request = pb.AuthRoleGrantPermissionRequest(name="r", perm=permission)
    succeed(client, "Auth/RoleGrantPermission", request)
    succeed(client, "Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="u", role="r"))
    succeed(client, "Auth/AuthEnable", pb.AuthEnableRequest())


def log_in(client: Client, name: str) -> str:
    request = pb.AuthenticateRequest(name=name, password=f"{name}-secret")
    token: str = succeed(client, "Auth/Authenticate", request).token
    return token


class Place:
    """An authority, and what it issued."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", ["127.0.0.1"])
        self._issued: dict[str, Pair] = {}

    def pair(self, name: str) -> Pair:
        if name not in self._issued:
            self._issued[name] = self.authority.issue(name, purposes=["client"])
        return self._issued[name]

    def flags(self, *more: str) -> list[str]:
        return [
            f"--cert-file={self.server.cert}",
            f"--key-file={self.server.key}",
            f"--trusted-ca-file={self.authority.cert}",
            *more,
            *QUICK,
        ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"))


class Secured:
    """A server over TLS, and clients by the names in their certificates."""

    def __init__(self, server: Kvorum, place: Place, stack: ExitStack) -> None:
        self.server = server
        self._place = place
        self._stack = stack
        self._clients: dict[str | None, Client] = {}

    def client(self, name: str | None) -> Client:
        """Return the client of a common name; None: it has no certificate."""
        if name not in self._clients:
            pair = None if name is None else self._place.pair(name)
            client = SecureClient(self.server.address, self._place.authority, pair)
            self._stack.callback(client.close)
            self._clients[name] = client
        return self._clients[name]

    def ask(self, name: str | None, call: str, request: Message, metadata: Metadata = ()) -> Any:
        answer = self.client(name).ask(call, request, metadata=metadata)
        return answer if isinstance(answer, Status) else None

    def get(self, path: str) -> tuple[int, str]:
        context = trusting(self._place.authority.cert)
        pair = self._place.pair("u")
        context.load_cert_chain(pair.cert, pair.key)
        host, _, port = self.server.address.rpartition(":")
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=WAIT_SECONDS_MAX, context=context
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@contextmanager
def secured(place: Place, directory: Path, *flags: str) -> Iterator[Secured]:
    with ExitStack() as stack:
        server = stack.enter_context(
            running_kvorum(directory, *place.flags(*flags), scheme="https")
        )
        yield Secured(server, place, stack)


@pytest.fixture(scope="module")
def guarded(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(place, tmp_path_factory.mktemp("data"), "--client-cert-auth") as found:
        prepare(found.client("root"))
        yield found


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Any identity, an administrator, and rights on a key.
        ("root", (None, None, None)),
        ("u", (None, errors.PERMISSION_DENIED, None)),
        ("stranger", (None, errors.USER_NOT_FOUND, errors.PERMISSION_DENIED)),
        ("", (errors.USER_EMPTY,) * 3),
    ],
)
def test_the_common_name_of_a_certificate_is_who_calls(
    guarded: Secured, name: str, expected: tuple[Status | None, ...]
) -> None:
    calls: dict[str, Message] = {
        "Maintenance/Status": STATUS,
        "Auth/UserList": USERS,
        "KV/Put": PUT_A,
    }
    found = [guarded.ask(name, call, request) for call, request in calls.items()]
    assert tuple(found) == expected
    assert guarded.ask(name, "KV/Range", READ_A) == expected[2]


def test_a_token_goes_before_a_certificate(guarded: Secured) -> None:
    token = log_in(guarded.client("root"), "u")
    for name in ("root", "stranger", ""):
        assert guarded.ask(name, "KV/Put", PUT_A, shown(token)) is None
        refused = guarded.ask(name, "Auth/UserList", USERS, shown(token))
        assert refused == errors.PERMISSION_DENIED
    for bad in ("", "bad", f"x{token}"):
        for call, request in (("KV/Put", PUT_A), ("Maintenance/Status", STATUS)):
            refused = guarded.ask("root", call, request, shown(bad))
            assert refused == errors.INVALID_AUTH_TOKEN
    # What a gateway passes on is not its client's certificate.
    passed_on = (("grpcgateway-accept", "*/*"),)
    assert guarded.ask("root", "KV/Put", PUT_A, passed_on) == errors.USER_EMPTY


def test_a_watch_of_a_certificates_owner(guarded: Secured) -> None:
    talk = guarded.client("u").talk("Watch/Watch")
    for key in (b"a", b"z"):
        create = pb.WatchCreateRequest(key=key)
        talk.say(pb.WatchRequest(create_request=create))
    assert [talk.hear().canceled for _ in range(2)] == [False, True]
    talk.close()


@pytest.mark.long
def test_without_client_cert_auth_a_certificate_says_nothing(place: Place, tmp_path: Path) -> None:
    with secured(place, tmp_path) as server:
        prepare(server.client("root"))
        for call in (("Maintenance/Status", STATUS), ("KV/Put", PUT_A)):
            assert server.ask("root", *call) == errors.USER_EMPTY
        token = log_in(server.client("root"), "u")
        assert server.ask("root", "KV/Put", PUT_A, shown(token)) is None


# What a server does by itself, whatever the tokens are.


def verify_only(directory: Path) -> str:
    key = directory / "tokens.pub"
    key.write_bytes(public_pem(private_key("ES256")))
    return f"jwt,sign-method=ES256,pub-key={key}"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["none", "verify-only"])
def test_leases_expire_and_health_is_told_where_no_token_can_be_made(
    place: Place, tmp_path: Path, kind: str
) -> None:
    flag = "" if kind == "none" else verify_only(tmp_path)
    flags = ("--client-cert-auth", f"--auth-token={flag}")
    with secured(place, tmp_path / "data", *flags) as server:
        prepare(server.client("root"))
        login = pb.AuthenticateRequest(name="u", password="u-secret")
        refused = server.ask("u", "Auth/Authenticate", login)
        if kind == "none":
            assert refused == errors.AUTH_FAILED
        else:
            assert refused == errors.TOKEN_VERIFY_ONLY
            # A token that was signed elsewhere is taken.
            revision = succeed(server.client("u"), "Auth/AuthStatus", pb.AuthStatusRequest())
            made = signed_tokens("ES256").sign("u", revision.authRevision, int(time.time()) + 1000)
            assert server.ask("", "KV/Put", PUT_A, shown(made)) is None
        watch = server.client("u").watch(key=b"a")
        leases = count(1)

        def is_put() -> bool:
            lease = next(leases)
            granted = server.ask("u", "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1))
            assert granted is None
            refused = server.ask("u", "KV/Put", pb.PutRequest(key=b"a", lease=lease))
            assert refused in (None, errors.LEASE_NOT_FOUND)
            return refused is None

        # On a busy machine a lease may expire before there is a key.
        until("a key is put that has a lease", is_put)
        assert [watch.hear().events[0].type for _ in range(2)] == [0, 1]
        watch.close()
        assert server.get("/health") == (200, '{"health":"true","reason":""}')
        for path in ("/livez", "/readyz"):
            assert server.get(path) == (200, "ok\n")


# What a server never tells.


@pytest.mark.parametrize("kind", ["simple", "jwt"])
def test_nothing_secret_is_logged_answered_or_measured(tmp_path: Path, kind: str) -> None:
    flag = "simple"
    if kind == "jwt":
        (tmp_path / "secret").write_bytes(SECRET)
        flag = f"jwt,sign-method=HS256,priv-key={tmp_path / 'secret'}"
    flags = (f"--auth-token={flag}", "--log-level=debug", "--metrics=extensive", *QUICK)
    told: list[str] = []
    secrets: set[str] = set()
    with running_kvorum(tmp_path / "data", *flags) as server:
        client = Client(server.address)

        def ask(name: str, request: Message, token: str = "") -> Any:
            answer = client.ask(name, request, metadata=shown(token) if token else ())
            if not isinstance(answer, pb.AuthenticateResponse):
                told.append(str(answer))
            return answer

        prepare(client)
        root = log_in(client, "root")
        user = log_in(client, "u")
        secrets |= {"root-secret", "u-secret", root, user, "bad-token.7", "bad-token"}
        # Everything that takes a password, a hash or a token, well and badly.
        stored = base64.b64encode(b"$2a$04$" + b"stored-hash".ljust(53, b".")).decode()
        secrets |= {"stored-hash", stored}
        for password in ("wrong-secret", "long-secret" * 10, "u-secret"):
            secrets.add(password)
            ask("Auth/Authenticate", pb.AuthenticateRequest(name="u", password=password))
            ask("Auth/Authenticate", pb.AuthenticateRequest(name="nobody", password=password))
            for token in (root, user, "bad-token.7", ""):
                for request in (
                    pb.AuthUserAddRequest(name="n", password=password, hashedPassword=stored),
                    pb.AuthUserAddRequest(name="", password=password),
                ):
                    ask("Auth/UserAdd", request, token)
                change = pb.AuthUserChangePasswordRequest(name="n", password=password)
                ask("Auth/UserChangePassword", change, token)
        change = pb.AuthUserChangePasswordRequest(name="n", hashedPassword=stored)
        ask("Auth/UserChangePassword", change, log_in(client, "root"))
        change.hashedPassword = "not-base64-secret"
        secrets.add("not-base64-secret")
        ask("Auth/UserChangePassword", change, log_in(client, "root"))
        ask("Auth/UserGet", pb.AuthUserGetRequest(name="n"), log_in(client, "root"))
        ask("Auth/UserList", USERS, log_in(client, "root"))
        for token in (user, "bad-token", f"{user}x"):
            secrets.add(token)
            ask("KV/Put", PUT_A, token)
            ask("KV/Range", pb.RangeRequest(key=b"z"), token)
            ask("Maintenance/Status", STATUS, token)
            talk = client.talk("Watch/Watch", shown(token))
            talk.say(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"a")))
            told.append(str(talk.hear()))
            talk.close()
        # Messages that cannot be decoded, with a password in them.
        garbled = pb.AuthenticateRequest(name="u", password="garbled-secret").SerializeToString()
        secrets.add("garbled-secret")
        for method in ("Authenticate", "UserAdd", "UserChangePassword"):
            try:
                client.ask_bytes(
                    f"/etcdserverpb.Auth/{method}", garbled[:-1] + b"\xff\xff", WAIT_SECONDS_MAX
                )
            except Exception as error:
                told.append(str(error))
        delete = pb.AuthUserDeleteRequest(name="u")
        ask("Auth/UserDelete", delete, log_in(client, "root"))
        ask("KV/Put", PUT_A, user)
        ask("Auth/AuthDisable", pb.AuthDisableRequest(), log_in(client, "root"))
        told += [got(server.address, path) for path in ("/metrics", "/health", "/debug/vars")]
        client.close()
    told += server.lines
    everything = "\n".join(told)
    assert "added a user" in everything and "invalid password" in everything
    assert "etcd_debugging_auth_revision" in everything
    secrets |= {"$2a$", SECRET.decode().strip()}
    assert {secret for secret in secrets if secret in everything} == set()
    # Nor are they there in other forms.
    for secret in list(secrets):
        for form in (base64.b64encode(secret.encode()).decode(), secret.encode().hex()):
            assert form not in everything


def got(address: str, path: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("foo", "auth: invalid auth options"),
        ("jwt,sign-method=HS256", "auth: missing key data"),
    ],
)
def test_tokens_that_cannot_be_used_refuse_the_start(
    tmp_path: Path, flag: str, reason: str
) -> None:
    done = subprocess.run(
        command(tmp_path / "data", "127.0.0.1:0", f"--auth-token={flag}"),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["level"], last["msg"], last["error"]) == (
        "fatal",
        "failed to start etcd: a flag cannot be used",
        reason,
    )
    # Nothing was made: the next start, with other tokens, is the first.
    assert not (tmp_path / "data").exists()
