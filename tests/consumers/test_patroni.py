"""Patroni keeps PostgreSQL available with three members of ours, which come and go as well."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.certificates import Authority
from tests.cluster.members import MAKES, Cluster, new_cluster
from tests.consumers import environment
from tests.consumers.patroni_nodes import SCOPE, Node, running_nodes, shared_directory
from tests.process.clients import SecureClient
from tests.waiting import until

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

USER, PASSWORD = "patroni", "secret"
NAMESPACE = b"/service/"


@dataclass
class Store:
    """A cluster, and how Patroni is told to reach it."""

    cluster: Cluster
    settings: dict[str, object]


@contextmanager
def plain(directory: Path, make: str) -> Iterator[Store]:
    with new_cluster(directory / "members", make) as cluster:
        cluster.start()
        yield Store(cluster, {"hosts": [member.address for member in cluster]})


@contextmanager
def guarded(directory: Path, make: str) -> Iterator[Store]:
    """Give a cluster over TLS that demands certificates of its clients, and a password of Patroni.

    Patroni's certificate has no common name: the gateway refuses one that has.
    """
    authority = Authority(directory)
    with new_cluster(
        directory / "members", make, 3, "--client-cert-auth", "--bcrypt-cost=4"
    ) as cluster:
        server = authority.issue("server", [member.host for member in cluster])
        root, nameless = (authority.issue(name, purposes=["client"]) for name in ("root", ""))
        for member in cluster:
            member.flags = (
                f"--listen-client-urls=https://{member.address}",
                f"--advertise-client-urls=https://{member.address}",
                f"--cert-file={server.cert}",
                f"--key-file={server.key}",
                f"--trusted-ca-file={authority.cert}",
            )
            member.client.close()
            member.client = SecureClient(member.address, authority, root)
        cluster.start()
        demand_passwords(cluster)
        yield Store(
            cluster,
            {
                "hosts": [member.address for member in cluster],
                "protocol": "https",
                "cacert": str(authority.cert),
                "cert": str(nameless.cert),
                "key": str(nameless.key),
                "username": USER,
                "password": PASSWORD,
            },
        )


def demand_passwords(cluster: Cluster) -> None:
    """Enable authentication, with a user for Patroni that may do what Patroni needs."""
    member = cluster[0]
    permission = Permission(
        permType=Permission.READWRITE, key=NAMESPACE, range_end=NAMESPACE[:-1] + b"0"
    )
    member.answer("Auth/RoleAdd", pb.AuthRoleAddRequest(name="keys"))
    member.answer(
        "Auth/RoleGrantPermission",
        pb.AuthRoleGrantPermissionRequest(name="keys", perm=permission),
    )
    for user, role in (("root", "root"), (USER, "keys")):
        member.answer("Auth/UserAdd", pb.AuthUserAddRequest(name=user, password=PASSWORD))
        member.answer("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role))
    member.answer("Auth/AuthEnable", pb.AuthEnableRequest())


def replicate(primary: Node, replica: Node, *rows: str) -> None:
    """Write the last row, and wait until both nodes have all of them."""
    primary.add_row(rows[-1])
    for node in (primary, replica):
        until(f"{node} has {rows}", lambda node=node: node.rows() == set(rows))  # type: ignore[misc]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("secured", [plain, guarded], ids=["plain", "tls and users"])
def test_start_switchover_and_failover(make: str, secured: object) -> None:
    environment.require()
    assert callable(secured)
    with shared_directory() as directory, secured(directory, make) as store:
        cluster: Cluster = store.cluster
        try:
            with running_nodes(directory, ("first", "second"), store.settings) as (first, second):
                replicate(first, second, "started")

                first.switch_over(second)
                until("the other is promoted", lambda: second.is_primary(timeline=2))
                until("the former one follows", first.is_streaming)
                replicate(second, first, "started", "switched")

                leader = cluster.leader()
                leader.kill()
                cluster.leader(cluster.others(leader))
                # What one node writes to the store, the other one hears of.
                second.configure(maximum_lag_on_failover=123_456)
                for node in (first, second):
                    until(
                        f"{node} knows the new setting",
                        lambda node=node: (  # type: ignore[misc]
                            node.configuration().get("maximum_lag_on_failover") == 123_456
                        ),
                    )
                replicate(second, first, "started", "switched", "led-anew")
                assert second.is_primary(timeline=2)
                leader.start()
                cluster.settle()

                second.kill()
                until("the other takes over", lambda: first.is_primary(timeline=3))
                second.start()
                until("the killed one comes back and follows", second.is_streaming)
                replicate(first, second, "started", "switched", "led-anew", "failed-over")
        except BaseException:
            cluster.print_logs()
            raise
        assert cluster[0].get(NAMESPACE + SCOPE.encode() + b"/initialize")
