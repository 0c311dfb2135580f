"""The plain HTTP endpoints, compared answer by answer with a real etcd where it has them."""

import gzip
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.etcdctl import run as etcdctl
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.server.http.endpoints import ask, raise_alarm


class Pair(NamedTuple):
    """Addresses of our server and of a real etcd: for clients, and for metrics."""

    ours: str
    theirs: str
    our_metrics: str
    their_metrics: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    with (
        held_port() as our_port,
        held_port() as their_port,
        running_kvorum(directory / "ours", metrics_flag(our_port)) as kvorum,
        running_etcd(directory / "theirs", metrics_flag(their_port)) as etcd,
    ):
        metrics = (f"127.0.0.1:{port}" for port in (our_port, their_port))
        yield Pair(kvorum.address, etcd.address, *metrics)


def metrics_flag(port: int) -> str:
    return f"--listen-metrics-urls=http://127.0.0.1:{port}"


TARGETS = [
    ("GET", "/health"),
    ("GET", "/health?exclude=FOO&exclude="),
    ("POST", "/health"),
    ("HEAD", "/health"),
    ("OPTIONS", "/health"),
    ("GET", "/health/"),
    ("POST", "/version"),
    ("OPTIONS", "/version"),
    ("GET", "/version/"),
    ("GET", "/"),
    ("GET", "/nothing/here"),
    ("POST", "/nothing"),
    ("OPTIONS", "/nothing"),
    ("DELETE", "/"),
]


@pytest.mark.parametrize(("method", "target"), TARGETS, ids=lambda part: part)
@pytest.mark.parametrize("origin", ["", "http://example.com"])
def test_as_etcd_answers_clients(pair: Pair, method: str, target: str, origin: str) -> None:
    headers = {"Origin": origin} if origin else {}
    assert ask(pair.ours, method, target, **headers) == ask(pair.theirs, method, target, **headers)


@pytest.mark.parametrize(("method", "target"), TARGETS, ids=lambda part: part)
def test_as_etcd_answers_at_the_metrics_address(pair: Pair, method: str, target: str) -> None:
    ours, theirs = (
        ask(address, method, target) for address in (pair.our_metrics, pair.their_metrics)
    )
    assert ours == theirs


def test_version(pair: Pair) -> None:
    ours, theirs = ask(pair.ours, "GET", "/version"), ask(pair.theirs, "GET", "/version")
    assert ours.headers == theirs.headers
    versions = json.loads(ours.body)
    assert list(versions) == [*json.loads(theirs.body)] + ["storage"] * (not is_target())
    assert versions["etcdserver"].startswith("3.7.")
    assert ask(pair.our_metrics, "GET", "/version").status == 404


CHECKS = ["data_corruption", "serializable_read", "linearizable_read", "non_learner"]


@pytest.mark.parametrize("on_metrics", [False, True], ids=["clients", "metrics"])
def test_livez_and_readyz(pair: Pair, on_metrics: bool) -> None:
    address = pair.our_metrics if on_metrics else pair.ours
    for kind, checks in (("livez", ["serializable_read"]), ("readyz", CHECKS)):
        plain = ask(address, "GET", f"/{kind}")
        assert (plain.status, plain.body) == (200, b"ok\n")
        assert plain.headers["content-type"] == "text/plain; charset=utf-8"
        assert plain.headers["x-content-type-options"] == "nosniff"
        verbose = ask(address, "GET", f"/{kind}?verbose").body.decode().splitlines()
        assert verbose == [*(f"[+]{name} ok" for name in checks), "ok"]
        for name in CHECKS:
            answer = ask(address, "GET", f"/{kind}/{name}?verbose")
            expected = (200, f"[+]{name} ok\nok\n") if name in checks else (404, None)
            assert answer.status == expected[0]
            assert expected[1] is None or answer.body.decode() == expected[1]
        excluded = ask(address, "GET", f"/{kind}?verbose&exclude={checks[0]}&exclude=none")
        assert excluded.body.decode().splitlines() == [
            *(f"[+]{name} ok" for name in checks[1:]),
            "ok",
        ]
        refused = ask(address, "POST", f"/{kind}")
        assert (refused.status, refused.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(("kind", "name"), [(1, "NOSPACE"), (2, "CORRUPT")])
def test_alarms_show_in_health_as_in_etcds(tmp_path: Path, kind: int, name: str) -> None:
    with (
        running_kvorum(tmp_path / "ours") as kvorum,
        running_etcd(tmp_path / "theirs") as etcd,
    ):
        for address in (kvorum.address, etcd.address):
            raise_alarm(address, kind)
        for target in ("/health", f"/health?exclude={name}", "/health?serializable=true"):
            ours, theirs = ask(kvorum.address, "GET", target), ask(etcd.address, "GET", target)
            assert ours == theirs
        assert ask(kvorum.address, "GET", "/livez").status == 200
        ready = ask(kvorum.address, "GET", "/readyz")
        if name == "NOSPACE":
            assert (ready.status, ready.body) == (200, b"ok\n")
        else:
            assert ready.status == 503
            assert ready.body.decode().splitlines() == [
                "[-]data_corruption failed: alarm activated: CORRUPT",
                *(f"[+]{check} ok" for check in CHECKS[1:]),
                "",
            ]
        disarmed = etcdctl(kvorum.address, "alarm", "disarm")
        assert disarmed.code == 0, disarmed
        assert ask(kvorum.address, "GET", "/readyz").status == 200


def test_cors_and_the_host_whitelist_as_in_etcd(tmp_path: Path) -> None:
    flags = ("--cors=http://good.example:80", "--host-whitelist=localhost,127.0.0.1")
    with (
        running_kvorum(tmp_path / "ours", *flags) as kvorum,
        running_etcd(tmp_path / "theirs", *flags) as etcd,
    ):
        for headers in (
            {},
            {"Origin": "http://good.example:80"},
            {"Origin": "http://evil.example:80"},
            {"Host": "localhost"},
            {"Host": "localhost:1234"},
        ):
            ours, theirs = (
                ask(address, "GET", "/health", **headers)
                for address in (kvorum.address, etcd.address)
            )
            assert ours == theirs, headers
        ours, theirs = (
            ask(address, "GET", "/health", Host="evil.example")
            for address in (kvorum.address, etcd.address)
        )
        assert ours.status == theirs.status == 421
        assert b"evil.example" in ours.body


def test_metrics_can_be_read_plain_and_compressed(pair: Pair) -> None:
    for address in (pair.ours, pair.our_metrics):
        plain = ask(address, "GET", "/metrics")
        assert plain.status == 200
        kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
        assert plain.headers["content-type"] == kind
        packed = ask(address, "GET", "/metrics", **{"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        for body in (plain.body, gzip.decompress(packed.body)):
            families = list(text_string_to_metric_families(body.decode()))
            assert len(families) > 30


def test_a_client_that_goes_away_disturbs_nobody(pair: Pair) -> None:
    host, port = pair.ours.split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
    assert ask(pair.ours, "GET", "/readyz").body == b"ok\n"


def test_profiling_only_when_asked_for(pair: Pair, tmp_path: Path) -> None:
    assert ask(pair.ours, "GET", "/debug/pprof/").status == 404
    with running_kvorum(tmp_path / "data", "--enable-pprof") as kvorum:
        stacks = ask(kvorum.address, "GET", "/debug/pprof/")
        assert b"thread MainThread:" in stacks.body
        profile = ask(kvorum.address, "GET", "/debug/pprof/profile?seconds=0.2")
        assert b"function calls" in profile.body
        assert ask(kvorum.address, "GET", "/debug/pprof/profile?seconds=x").status == 400
        variables = json.loads(ask(kvorum.address, "GET", "/debug/vars").body)
        theirs = json.loads(ask(pair.theirs, "GET", "/debug/vars").body)
        assert list(variables["raft.status"]) == list(theirs["raft.status"])


def test_unix_sockets(tmp_path: Path) -> None:
    # As with etcd, host and path together are the name of the file.
    path = tmp_path / "client.sock"
    url = f"unix://{path}"
    flags = (f"--listen-client-urls={url}", "--advertise-client-urls=http://127.0.0.1:1")
    with running_kvorum(tmp_path / "data", *flags):
        done = subprocess.run(
            ["curl", "-s", "--unix-socket", str(path), "http://localhost/health"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert done.stdout == '{"health":"true","reason":""}'
    assert not path.exists()


# What a client accepts.

qualities = st.sampled_from(["", ";q=1", ";q=0.9", ";q=0.5", ";q=0.1", ";q=0"])
escapings = st.sampled_from(
    ["", "", ";escaping=allow-utf-8", ";escaping=dots", ";escaping=values", ";escaping=none"]
)
# Not `*/*` among others: where it comes depends on the order in which Go's library sorts them.
formats = st.sampled_from(
    [
        "text/plain",
        "text/plain;version=0.0.4",
        "text/plain; version=1.0.0",
        "text/html",
        "application/openmetrics-text",
        "application/openmetrics-text;version=1.0.0",
        "application/json",
    ]
)
accepts = st.just(["*/*"]) | st.lists(
    st.builds("".join, st.tuples(formats, escapings, qualities)), max_size=4
)
codings = st.sampled_from(["gzip", "identity", "*", "deflate", "br", "zstd", "GZIP"])
encodings = st.lists(st.builds("".join, st.tuples(codings, qualities)), max_size=4)


@settings(max_examples=60, deadline=None)
@given(accepts, encodings)
def test_the_format_of_metrics_is_chosen_as_by_etcd(
    pair: Pair, accept: list[str], accept_encoding: list[str]
) -> None:
    if not is_target():
        pytest.skip("an older library knows no escaping")
    headers = {"Accept-Encoding": ", ".join(accept_encoding)}
    if accept:
        headers["Accept"] = ", ".join(accept)
    ours, theirs = (
        ask(address, "GET", "/metrics", **headers) for address in (pair.ours, pair.theirs)
    )
    assert (ours.status, ours.headers) == (theirs.status, theirs.headers), headers


def test_scrapes_are_counted_as_by_etcd(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "ours") as kvorum,
        running_etcd(tmp_path / "theirs") as etcd,
    ):
        found = []
        for address in (kvorum.address, etcd.address):
            for _ in range(3):
                page = ask(address, "GET", "/metrics").body.decode()
            found.append([line for line in page.splitlines() if line.startswith("promhttp_")])
    assert found[0] == found[1]
