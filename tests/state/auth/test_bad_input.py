"""Tokens and metadata that no client of ours sends: an error each, and the server goes on."""

from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from tests.network.edge.wire import Answer, Wire, message
from tests.state.auth.people import prepare
from tests.state.auth.servers import Server, Servers, running_ours

PATHS = {
    "/etcdserverpb.KV/Range": pb.RangeRequest(key=b"a"),
    "/etcdserverpb.KV/Put": pb.PutRequest(key=b"a"),
    "/etcdserverpb.Auth/UserList": pb.AuthUserListRequest(),
    "/etcdserverpb.Lease/LeaseKeepAlive": pb.LeaseKeepAliveRequest(ID=71),
    "/etcdserverpb.KV/RangeStream": pb.RangeRequest(key=b"a"),
    "/v3lockpb.Lock/Lock": pb.RangeRequest(key=b"a"),
}
FAR = "ABCDEFGHIJKLMNOP.18446744073709551615"
"""A token of a login that is to come."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_ours(tmp_path_factory.mktemp("kvorum")) as found:
        prepare(Servers(found))
        yield found


def told(server: Server, path: str, *metadata: tuple[str, str | bytes]) -> Answer:
    """Make a call with metadata as it is, byte by byte."""
    with Wire(server.address) as wire:
        body = message(PATHS[path].SerializeToString())
        return wire.answer(wire.call(path, body, *metadata))  # type: ignore[arg-type]


def check(server: Server, path: str, *metadata: tuple[str, str | bytes]) -> None:
    answer = told(server, path, *metadata)
    is_refusal = "grpc-status" in {**answer.headers, **answer.trailers} and answer.status[0] != 0
    is_http_error = answer.headers.get(":status", "200") != "200"
    is_broken_off = answer.reset is not None or not answer.ended
    assert is_refusal or is_http_error or is_broken_off, answer
    server.answer("KV/Put", pb.PutRequest(key=b"a"), "root")


paths = st.sampled_from(list(PATHS))
keys = st.sampled_from(["token", "authorization"])
numbers = st.one_of(st.integers(), st.floats(), st.text("0123456789+-_xe", max_size=30))
tokens = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(str.encode),
    st.builds(lambda name, number: f"{name}.{number}".encode(), st.text(max_size=20), numbers),
    st.builds(lambda parts: b".".join(parts), st.lists(st.binary(max_size=30), max_size=5)),
)
prefixes = st.sampled_from([b"", b"Bearer ", b"bearer ", b"Bearer", b"Basic ", b"\0", b"\xff"])


def is_far(token: bytes) -> bool:
    """Return whether a token may be of a login to come, for which a server waits."""
    _, dot, number = token.removeprefix(b"Bearer ").partition(b".")
    return bool(dot) and number.isdigit()


@pytest.mark.long
@given(path=paths, key=keys, prefix=prefixes, token=tokens)
def test_any_token(server: Server, path: str, key: str, prefix: bytes, token: bytes) -> None:
    assume(not is_far(prefix + token))
    check(server, path, (key, prefix + token))


@given(path=paths, metadata=st.lists(st.tuples(keys, tokens), min_size=2, max_size=100))
@settings(max_examples=30)
def test_many_of_them(server: Server, path: str, metadata: list[tuple[str, bytes]]) -> None:
    check(server, path, ("token", b"."), *metadata)


@pytest.mark.parametrize("size", [1_000, 4_000, 8_000, 15_000])
@pytest.mark.parametrize("path", PATHS)
def test_long_ones(server: Server, path: str, size: int) -> None:
    for token in (b"x" * size, b"." * size, b"x." + b"1" * size, b"Bearer " * (size // 7)):
        check(server, path, ("token", token))


def test_a_parade_of_logins_and_passwords(server: Server) -> None:
    """Names and passwords of every length are refused, or are somebody's."""
    for size in (0, 1, 72, 73, 10_000, 1_000_000):
        request = pb.AuthenticateRequest(name="x" * size, password="x" * size)
        assert server.client.ask("Auth/Authenticate", request) == errors.AUTH_FAILED
        request = pb.AuthenticateRequest(name="root", password="x" * size)
        assert server.client.ask("Auth/Authenticate", request) == errors.AUTH_FAILED
    server.log_in("root", "secret")


@pytest.mark.long
def test_a_login_that_is_to_come_is_waited_for_a_while(server: Server) -> None:
    """A token names the entry that made it, and a member waits for that entry, but not for ever."""
    far = (("token", FAR),)
    begun = [
        server.client.begin("KV/Range", pb.RangeRequest(key=b"a"), 120, far),
        server.client.begin("Maintenance/Status", pb.StatusRequest(), 120, far),
    ]
    # Nobody else waits.
    server.answer("KV/Put", pb.PutRequest(key=b"a"), "root")
    for call in begun:
        assert call.exception().code().value[0] == errors.INVALID_AUTH_TOKEN.code
        assert call.exception().details() == errors.INVALID_AUTH_TOKEN.text
