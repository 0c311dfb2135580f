"""Every route of the contract is there, and nothing else: as at a real etcd."""

from collections.abc import Iterator

import pytest

from kvorum.server.http.routes import ROUTES as OUR_ROUTES
from tests.server.http.asking import ask
from tests.server.http.bodies import ROUTES
from tests.server.http.comparing import Seen, seen
from tests.server.http.servers import Both, running_both

METHODS = ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "post", "OTHER"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("routes")) as found:
        yield found


def check(both: Both, method: str, target: str, body: bytes = b"") -> Seen:
    ours, theirs = (seen(target, ask(each, target, body, method=method)) for each in both)
    assert ours == theirs, f"{method} {target}"
    return ours


def test_routes_are_those_of_the_contract() -> None:
    assert len(ROUTES) == 51
    assert {route.path for route in ROUTES} == set(OUR_ROUTES)


def test_every_route_takes_a_post(both: Both) -> None:
    for route in ROUTES:
        if route.method.client_streaming:
            # A watch would go on for ever; what cannot be decoded ends a stream silently.
            continue
        for path in (route.path, route.path.replace("/v3/", "/v3beta/"), f"{route.path}?key=YQ=="):
            found = check(both, "POST", path, b'{"name":[],"broken')
            assert (found.status, '"code": 3' in found.values[0]) == (400, True)


@pytest.mark.parametrize("method", METHODS)
def test_every_route_takes_a_post_only(both: Both, method: str) -> None:
    for route in ROUTES:
        found = check(both, method, route.path)
        assert found.status == (200 if method == "OPTIONS" else 501)


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    "target",
    [
        "/v3/",
        "/v3/kv",
        "/v3/kv/",
        "/v3/kv/nothing",
        "/v3/kv/range/",
        "/v3/kv/range/more",
        "/v3/kv/Range",
        "/v3/kv/range:verb",
        "/v3/kv/range;x=1",
        "/v3/kv/rangestream",
        "/v3/kv/range%2F",
        "/v3/etcdserverpb.KV/Range",
        "/v3/kv/lease/grant",
        "/v3/kv/lease/keepalive",
        "/v3/v3/kv/range",
        "/v3beta",
        "/v3beta/",
        "/v3beta/nothing",
        "/v3beta/v3beta/kv/range",
        "/v3betax/kv/range",
        "/v3alpha/kv/range",
        "/v3alpha",
        "/V3/kv/range",
        "/v2/keys",
        "/kv/range",
        "/v4/kv/range",
    ],
)
def test_other_paths_are_not_there(both: Both, method: str, target: str) -> None:
    assert check(both, method, target).status == (200 if method == "OPTIONS" else 404)


@pytest.mark.parametrize(
    "target",
    [
        "/v3/kv/range?revision=7",
        "/v3/kv/range?",
        "/v3/kv/%72ange",
        "/v3/kv%2Frange",
        "/%763/kv/range",
        "http://localhost/v3/kv/range",
        "/v3beta/kv/range?x",
    ],
)
def test_other_ways_to_write_a_path(both: Both, target: str) -> None:
    assert check(both, "POST", target, b'{"key":"YQ=="}').status == 200
