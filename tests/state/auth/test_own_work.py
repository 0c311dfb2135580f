"""What a server does by itself needs nobody's rights: leases run out, and its health is told."""

import http.client
from collections.abc import Iterator

import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests.state.auth.people import prepare
from tests.state.auth.servers import Both, Server, running_both


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("own")) as found:
        prepare(found)
        yield found


def got(server: Server, path: str) -> tuple[int, str]:
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.long
def test_leases_run_out(both: Both) -> None:
    """Those of users, and those of users who are gone."""
    lease = pb.LeaseGrantRequest(ID=90, TTL=1)
    for server in both:
        talk = server.client.watch(server.metadata_of("owner"), key=b"c")
        server.answer("Lease/LeaseGrant", lease, "owner")
        server.answer("KV/Put", pb.PutRequest(key=b"c", lease=90), "owner")
        revoke = pb.AuthUserRevokeRoleRequest(name="owner", role="both")
        server.answer("Auth/UserRevokeRole", revoke, "root")
        assert [talk.hear().events[0].type for _ in range(2)] == [0, 1]
        talk.close()
        grant = pb.AuthUserGrantRoleRequest(user="owner", role="both")
        server.answer("Auth/UserGrantRole", grant, "root")


@pytest.mark.parametrize("path", ["/health", "/health?serializable=true", "/livez", "/readyz"])
def test_health_is_told_to_everybody(both: Both, path: str) -> None:
    ours, theirs = (got(server, path) for server in both)
    assert ours == theirs
    assert ours[0] == 200


def test_the_revision_of_users_is_a_metric(both: Both) -> None:
    counters = []
    for server in both:
        revision = server.answer("Auth/AuthStatus", pb.AuthStatusRequest()).authRevision
        _, text = got(server, "/metrics")
        (line,) = [
            each for each in text.splitlines() if each.startswith("etcd_debugging_auth_revision ")
        ]
        counters.append(line)
        assert float(line.split()[1]) == revision
    assert counters[0] == counters[1]
