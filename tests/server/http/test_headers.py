"""What surrounds a call of the gateway: headers, hosts, origins, deadlines, tokens, listeners."""

import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority, Pair, trusting
from tests.etcd import running_etcd
from tests.ports import held_ports
from tests.server.http.asking import Answer, ClosedError, Connection, Headers, ask
from tests.server.http.comparing import CORS, Seen, headers_of, seen, settled
from tests.server.http.servers import Both, need_the_target, running_both, running_ours
from tests.server.http.streaming import Streams
from tests.state.auth.servers import OURS_IS_ETCD, QUICK

FOO = b'{"key":"Zm9v"}'
PUT = b'{"key":"Zm9v","value":"MQ=="}'
GOOD_ORIGIN, BAD_ORIGIN = "http://good.example:80", "http://evil.example:80"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("plain")) as found:
        yield found


def check(
    both: Both,
    target: str,
    body: bytes = FOO,
    headers: Headers | None = None,
    method: str = "POST",
    tls: ssl.SSLContext | None = None,
) -> Seen:
    """Make a request to both, and compare the answers, with the texts of errors."""
    ours, theirs = (ask(each, target, body, headers, method, tls) for each in both)
    found, expected = seen(target, ours), seen(target, theirs)
    assert found == expected, f"{target} {headers}"
    assert _message(ours) == _message(theirs)
    return found


def _message(answer: Answer) -> str | None:
    if answer.status == 200 or answer.headers.get("content-type") != "application/json":
        return None
    value = json.loads(answer.body) if answer.body else {}
    # Where in it base64 goes wrong is free.
    message: str = value.get("message", "")
    return settled(message.partition(" at input byte ")[0])


# Origins and hosts.


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("target", ["/v3/kv/range", "/v3/nothing", "/v3alpha/kv/range"])
def test_any_origin_by_default(both: Both, method: str, target: str) -> None:
    for headers in ({}, {"Origin": BAD_ORIGIN}):
        found = check(both, target, FOO, headers, method)
        assert found.headers[f"{CORS}allow-origin"] == "*"


def test_preflight(both: Both) -> None:
    asked = {
        "Origin": GOOD_ORIGIN,
        f"{CORS}request-method".title(): "POST",
        f"{CORS}request-headers".title(): "content-type,x-other",
    }
    assert check(both, "/v3/kv/put", b"", asked, "OPTIONS").values == [""]


@pytest.fixture(scope="module")
def choosy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    flags = (f"--cors={GOOD_ORIGIN}", "--host-whitelist=localhost,127.0.0.1")
    with running_both(tmp_path_factory.mktemp("choosy"), *flags) as found:
        yield found


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_origins_of_a_list(choosy: Both, method: str) -> None:
    for target in ("/v3/kv/range", "/v3/nothing"):
        assert not _allows(check(choosy, target, FOO, {}, method))
        assert not _allows(check(choosy, target, FOO, {"Origin": BAD_ORIGIN}, method))
        assert _allows(check(choosy, target, FOO, {"Origin": GOOD_ORIGIN}, method))


def _allows(found: Seen) -> bool:
    return any(name.startswith(CORS) for name in found.headers)


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example"])
def test_hosts_that_are_not_of_the_list(choosy: Both, method: str, host: str) -> None:
    for target in ("/v3/kv/range", "/v3/nothing", "/v3/watch"):
        headers = {"Host": host, "Origin": GOOD_ORIGIN}
        ours, theirs = (ask(each, target, FOO, headers, method) for each in choosy)
        assert (ours.status, headers_of(ours)) == (theirs.status, headers_of(theirs))
        assert ours.status == 421
    assert check(choosy, "/v3/kv/range", FOO, {"Host": "localhost:1"}).status == 200


# What a request says about itself.


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/html; charset=utf-16"},
        {"Content-Type": ""},
        {"Accept": "text/html"},
        {"Accept": "application/protobuf", "Accept-Encoding": "gzip"},
        {"Content-Encoding": "gzip"},
        {"TE": "trailers"},
        {"Expect": "100-continue"},
        {"X-HTTP-Method-Override": "GET"},
        {"Grpc-Metadata-X": "1"},
        {"Grpc-Metadata-X": "\xe9\xff"},
        {"Grpc-Metadata-hasleader": "true"},
        {"grpc-metadata-HASLEADER": "true"},
        {"Grpc-Metadata-Client-Api-Version": "3.7"},
        {"Grpc-Metadata-Content-Type": "application/json"},
        {"Grpc-Metadata-Grpc-Timeout": "1n"},
        {"Grpc-Metadata-Token": "nothing while nobody has to log in"},
        {"Authorization": "nothing while nobody has to log in"},
        {"Grpc-Metadata-X-Bin": "YQ"},
        {"Grpc-Metadata-X-Bin": "YQ=="},
        {"Grpc-Metadata-X-Bin": ""},
        {"Grpc-Timeout": "5S"},
        {"Grpc-Timeout": "+5S"},
        {"Grpc-Timeout": "0S"},
        {"Grpc-Timeout": "1H"},
        {"Grpc-Timeout": "99999999999S"},
        {"Grpc-Timeout": ""},
        {"X-Forwarded-For": "1.2.3.4, 5.6.7.8", "X-Forwarded-Host": "other.example"},
        {"Cookie": "token=x"},
    ],
    ids=str,
)
def test_headers_that_do_no_harm(both: Both, headers: dict[str, str]) -> None:
    assert check(both, "/v3/kv/range", FOO, headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        *({"Grpc-Timeout": each} for each in ("5", "5s", "S", "5 S", "1.5S", "x", "5SS", "0x5S")),
        {"Grpc-Metadata-X-Bin": "!!"},
        {"grpc-metadata-x-BIN": "YQ="},
        {"Grpc-Metadata-X-Bin": "-_8"},
    ],
    ids=str,
)
def test_headers_that_are_refused(both: Both, headers: dict[str, str]) -> None:
    for target in ("/v3/kv/range", "/v3/watch", "/v3/maintenance/snapshot"):
        assert check(both, target, FOO, headers).status == 400


@pytest.mark.parametrize("given", ["1n", "-5S", "-1n", "-0000001H"])
def test_deadlines_that_have_passed(both: Both, given: str) -> None:
    for target in ("/v3/kv/put", "/v3/kv/range", "/v3/auth/status", "/v3/cluster/member/list"):
        found = check(both, target, PUT, {"Grpc-Timeout": given})
        assert found.status == 504
        assert found.values == ['{"code": 4, "message": "context deadline exceeded"}']


def test_deadlines_of_calls_that_wait(both: Both) -> None:
    for lease in (b"7", b"8"):
        check(both, "/v3/lease/grant", b'{"TTL":3000,"ID":%b}' % lease)
    assert check(both, "/v3/lock/lock", b'{"name":"cQ==","lease":7}').status == 200
    late = check(both, "/v3/lock/lock", b'{"name":"cQ==","lease":8}', {"Grpc-Timeout": "200m"})
    assert late.status == 504
    # Who gave up does not stand in the queue.
    check(both, "/v3/lease/timetolive", b'{"ID":8,"keys":true}')
    for lease in (b"7", b"8"):
        check(both, "/v3/lease/revoke", b'{"ID":%b}' % lease)


@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
@pytest.mark.parametrize("override", ["GET", "POST", "get", ""])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json"])
def test_methods_that_are_overridden(both: Both, method: str, override: str, kind: str) -> None:
    # With a body, etcd takes it for a form, and the call gets nothing of it.
    headers = {"Content-Type": kind, "X-HTTP-Method-Override": override}
    check(both, "/v3/kv/range", b"", headers, method)


# Who asks.


class Users:
    """Both servers with a root and a user who may read one key; and everybody's tokens."""

    def __init__(self, both: Both, tls: ssl.SSLContext | None = None) -> None:
        self.both = both
        self._tls = tls
        for target, fields in (
            ("user/add", {"name": "root", "password": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "alice", "password": "alice"}),
            ("role/add", {"name": "reader"}),
            ("role/grant", {"name": "reader", "perm": {"permType": "READ", "key": "Zm9v"}}),
            ("user/grant", {"user": "alice", "role": "reader"}),
            ("enable", {}),
        ):
            body = json.dumps(fields).encode()
            assert check(both, f"/v3/auth/{target}", body, tls=tls).status == 200

    def tokens(self, name: str) -> list[str]:
        """Log somebody in; return the tokens for ours and theirs."""
        body = json.dumps({"name": name, "password": name})
        found = []
        for address in self.both:
            answer = ask(address, "/v3/auth/authenticate", body, tls=self._tls)
            assert list(answer.json) == ["header", "token"]
            found.append(answer.json["token"])
        return found

    def check(
        self, target: str, body: bytes, header: str, forms: Sequence[str]
    ) -> tuple[Seen, Answer]:
        """Make a request to both with a header that is each one's own, and compare."""
        answers = [
            ask(address, target, body, {header: form}, tls=self._tls)
            for address, form in zip(self.both, forms, strict=True)
        ]
        ours, theirs = (seen(target, each) for each in answers)
        assert ours == theirs, f"{target} {header} {forms}"
        return ours, answers[0]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    with running_both(tmp_path_factory.mktemp("users")) as found:
        yield Users(found)


@pytest.mark.parametrize("header", ["Authorization", "Grpc-Metadata-Token"])
@pytest.mark.parametrize("form", ["{}", "Bearer {}"])
def test_tokens(users: Users, header: str, form: str) -> None:
    forms = [form.format(each) for each in users.tokens("alice")]
    assert users.check("/v3/kv/range", FOO, header, forms)[0].status == 200
    refused, _ = users.check("/v3/kv/put", PUT, header, forms)
    assert (refused.status, "permission denied" in refused.values[0]) == (403, True)
    root = [form.format(each) for each in users.tokens("root")]
    assert users.check("/v3/kv/put", PUT, header, root)[0].status == 200


@pytest.mark.parametrize("header", ["Authorization", "Grpc-Metadata-Authorization"])
@pytest.mark.parametrize("form", ["bearer {}", "Bearer  {}", "Basic {}", "{}x", "", "Bearer "])
def test_other_forms_of_tokens(users: Users, header: str, form: str) -> None:
    forms = [form.format(each) for each in users.tokens("alice")]
    users.check("/v3/kv/range", FOO, header, forms)


def test_one_who_is_not_known_is_told_so(users: Users) -> None:
    refused, answer = users.check("/v3/kv/range", FOO, "Authorization", ["wrong", "wrong"])
    assert refused.status == 401
    assert answer.headers["www-authenticate"] == "etcdserver: invalid auth token"
    assert answer.json == {"code": 16, "message": "etcdserver: invalid auth token"}
    for target in ("/v3/kv/range", "/v3/kv/put", "/v3/auth/user/list", "/v3/maintenance/status"):
        assert check(users.both, target, PUT).status == 400


def test_a_token_in_the_metadata_counts_before_that_of_the_header(users: Users) -> None:
    for first, second, status in (("root", "alice", 200), ("alice", "root", 403)):
        found = [
            ask(address, "/v3/kv/put", PUT, {"Grpc-Metadata-Token": one, "Authorization": other})
            for address, one, other in zip(
                users.both, users.tokens(first), users.tokens(second), strict=True
            )
        ]
        assert [each.status for each in found] == [status, status]


@pytest.mark.parametrize("name", ["alice", "nobody"])
@pytest.mark.parametrize("password", ["wrong", ""])
def test_failed_logins(users: Users, name: str, password: str) -> None:
    body = json.dumps({"name": name, "password": password}).encode()
    assert check(users.both, "/v3/auth/authenticate", body).status == 400


@pytest.mark.parametrize("token", [None, "wrong"])
@pytest.mark.parametrize(
    ("target", "request_text"),
    [
        ("/v3/watch", '{"create_request":{"key":"Zm9v"}}'),
        ("/v3/lease/keepalive", '{"ID":7}'),
        ("/v3/maintenance/snapshot", "{}"),
        ("/v3/election/observe", '{"name":"Zm9v"}'),
    ],
)
def test_streams_of_strangers(
    users: Users, token: str | None, target: str, request_text: str
) -> None:
    headers = {"Authorization": token} if token else {}
    with Streams(users.both, target, headers) as streams:
        streams.say(request_text)
        streams.end()
        streams.check_head()
        assert "www-authenticate" not in streams.ours.opened.headers
        streams.check_line()


# Certificates.


def tls_flags(authority: Authority, server: Pair) -> list[str]:
    return [
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={authority.cert}",
        "--client-cert-auth",
    ]


def context_of(authority: Authority, client: Pair) -> ssl.SSLContext:
    context = trusting(authority.cert)
    context.load_cert_chain(client.cert, client.key)
    return context


@pytest.mark.long
def test_certificates_with_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    flags = tls_flags(authority, authority.issue("server"))
    named = context_of(authority, authority.issue("root", file="named"))
    nameless = context_of(authority, authority.issue("", file="nameless"))
    with running_both(tmp_path, *flags, scheme="https") as both:
        assert check(both, "/v3/kv/put", PUT, tls=named).status == 200
        users = Users(both, nameless)
        for target, method in (
            ("/v3/kv/range", "POST"),
            ("/v3/nothing", "GET"),
            ("/v3beta/kv/range", "POST"),
            ("/v3/kv/range", "OPTIONS"),
        ):
            found = check(both, target, FOO, {}, method, named)
            assert (found.status, f"{CORS}allow-origin" in found.headers) == (400, False)
        assert check(both, "/health", b"", {}, "GET", named).status == 200
        assert check(both, "/v3alpha/kv/range", FOO, {}, "POST", named).status == 404
        # Without Accept, etcd takes its gateway for a user with the name of its own certificate.
        assert check(both, "/v3/kv/range", FOO, {"Accept": "*/*"}, tls=nameless).status == 400
        forms = users.tokens("alice")
        assert users.check("/v3/kv/range", FOO, "Authorization", forms)[0].status == 200


# Listeners.


def test_without_a_gateway(tmp_path: Path) -> None:
    with running_both(tmp_path, "--enable-grpc-gateway=false") as both:
        for method in ("POST", "GET", "OPTIONS"):
            for target in ("/v3/kv/range", "/v3beta/kv/range", "/v3/", "/v3", "/v3/watch"):
                expected = 200 if method == "OPTIONS" else 404
                assert check(both, target, FOO, {}, method).status == expected
        assert check(both, "/health", b"", {}, "GET").status == 200


@contextmanager
def running_apart(directory: Path, port: int, *, is_ours: bool) -> Iterator[str]:
    """Run a server with an address of its own for HTTP; return that of gRPC."""
    flag = f"--listen-client-http-urls=http://127.0.0.1:{port}"
    if is_ours:
        with running_ours(directory, flag) as address:
            yield address
    else:
        with running_etcd(directory, QUICK, flag) as etcd:
            yield etcd.address


def test_an_address_for_http_only(tmp_path: Path) -> None:
    need_the_target()
    with (
        held_ports(2) as (our_port, their_port),
        running_apart(tmp_path / "ours", our_port, is_ours=True) as ours,
        running_apart(tmp_path / "theirs", their_port, is_ours=False) as theirs,
    ):
        apart = Both(f"127.0.0.1:{our_port}", f"127.0.0.1:{their_port}")
        assert check(apart, "/v3/kv/put", PUT).status == 200
        assert check(apart, "/health", b"", {}, "GET").status == 200
        for address in (ours, theirs):
            assert not _serves_http(address)


def _serves_http(address: str) -> bool:
    try:
        return ask(address, "/v3/kv/range", FOO).status == 200
    except (ClosedError, ConnectionError, ValueError):
        return False


def test_unix_sockets(tmp_path: Path) -> None:
    need_the_target()
    paths = [tmp_path / "ours.sock", tmp_path / "theirs.sock"]
    flags = [
        (f"--listen-client-urls=unix://{path}", "--advertise-client-urls=http://127.0.0.1:1")
        for path in paths
    ]
    with (
        running_ours(tmp_path / "ours", *flags[0]),
        running_etcd(tmp_path / "theirs", QUICK, *flags[1]),
    ):
        both = Both(*(f"unix:{path}" for path in paths))
        assert check(both, "/v3/kv/put", PUT).status == 200
        assert check(both, "/v3/kv/range", FOO).status == 200


@pytest.mark.skipif(OURS_IS_ETCD, reason="etcd keeps connections as it likes")
def test_a_connection_is_kept_after_every_kind_of_answer(tmp_path: Path) -> None:
    with running_ours(tmp_path / "data") as address, Connection(address) as connection:
        for body, status in ((FOO, 200), (b"{", 400), (b"x" * 100_000, 400), (PUT, 200)):
            assert connection.ask("/v3/kv/range", body).status == status
        for target in ("/v3/nothing", "/v3/lease/keepalive", "/v3/maintenance/snapshot"):
            connection.ask(target, b"")
        assert connection.ask("/v3/kv/range", FOO).status == 200
