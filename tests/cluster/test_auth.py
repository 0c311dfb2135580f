"""Three members with authentication: who is known at one is known at all, and to the leader."""

import http.client
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from tests.certificates import Authority, trusting
from tests.cluster.client import Metadata
from tests.cluster.members import PASSING, Cluster, Member, new_cluster
from tests.process.clients import SecureClient
from tests.waiting import WAIT_SECONDS_MAX, until

FLAGS = (
    "--client-cert-auth",
    "--bcrypt-cost=4",
    # Logs are discarded soon, so that a member that is cut off gets a snapshot.
    "--snapshot-count=100",
    "--snapshot-catchup-entries=50",
)
ODD_NAME = "J\u00fcrgen M\u00fcller"
NOBODY_LISTENS = "http://127.0.0.1:9"


class Guarded:
    """A cluster over TLS whose own calls are root's, by a certificate."""

    def __init__(self, cluster: Cluster, authority: Authority) -> None:
        self.cluster = cluster
        self.authority = authority
        self._pairs = {
            name: authority.issue(name, purposes=["client"], file=f"client{number}")
            for number, name in enumerate(("root", "u", ODD_NAME, "stranger", ""))
        }
        self._clients: dict[tuple[str, str], SecureClient] = {}
        hosts = [member.host for member in cluster]
        server = authority.issue("server", hosts, file="server")
        for member in cluster:
            member.flags = (
                f"--listen-client-urls=https://{member.address}",
                f"--advertise-client-urls=https://{member.address}",
                f"--cert-file={server.cert}",
                f"--key-file={server.key}",
                f"--trusted-ca-file={authority.cert}",
            )
            member.client.close()
            member.client = self.client(member, "root")

    def client(self, member: Member, name: str) -> SecureClient:
        """Return a client with a certificate of this common name."""
        key = (member.name, name)
        if key not in self._clients:
            self._clients[key] = SecureClient(member.address, self.authority, self._pairs[name])
        return self._clients[key]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def ask(
        self, member: Member, name: str, call: str, request: Message, metadata: Metadata = ()
    ) -> Any:
        """Make a call in somebody's name, again if an election comes in between."""
        client = self.client(member, name)

        def settled() -> Any:
            answer = client.ask(call, request, metadata=metadata)
            return None if isinstance(answer, Status) and answer in PASSING else answer

        return until(f"{member} answers {name} {call}", settled)

    def prepare(self) -> None:
        member = self.cluster[0]
        for name in ("root", "u", ODD_NAME, "gone"):
            add = pb.AuthUserAddRequest(name=name, password=f"{name}-secret")
            member.answer("Auth/UserAdd", add, done=errors.USER_ALREADY_EXIST)
        for name in ("root", ODD_NAME):
            grant = pb.AuthUserGrantRoleRequest(user=name, role="root")
            member.answer("Auth/UserGrantRole", grant)
        add_role = pb.AuthRoleAddRequest(name="r")
        member.answer("Auth/RoleAdd", add_role, done=errors.ROLE_ALREADY_EXIST)
        permission = Permission(permType=Permission.READWRITE, key=b"a", range_end=b"b")
        request = pb.AuthRoleGrantPermissionRequest(name="r", perm=permission)
        member.answer("Auth/RoleGrantPermission", request)
        for name in ("u", "gone"):
            grant = pb.AuthUserGrantRoleRequest(user=name, role="r")
            member.answer("Auth/UserGrantRole", grant)
        member.answer("Auth/AuthEnable", pb.AuthEnableRequest())
        for each in self.cluster:
            # It comes back through the log, so that this member has applied what was before.
            assert each.answer("Auth/AuthStatus", pb.AuthStatusRequest()).enabled

    def log_in(self, member: Member, name: str) -> Metadata:
        """Return what a user shows after a login."""
        request = pb.AuthenticateRequest(name=name, password=f"{name}-secret")
        answer = member.answer("Auth/Authenticate", request)
        return (("token", answer.token),)

    def get(self, member: Member, path: str) -> tuple[int, str]:
        pair = self._pairs["stranger"]
        context = trusting(self.authority.cert)
        context.load_cert_chain(pair.cert, pair.key)
        host, _, port = member.address.rpartition(":")
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=WAIT_SECONDS_MAX, context=context
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    directory: Path = tmp_path_factory.mktemp("guarded")
    with new_cluster(directory, "kvorum", 3, *FLAGS) as cluster:
        found = Guarded(cluster, authority)
        try:
            cluster.start()
            found.prepare()
            yield found
        except BaseException:
            cluster.print_logs()
            raise
        finally:
            found.close()


READ_A = pb.RangeRequest(key=b"a", serializable=True)
_values = count()


@pytest.mark.long
def test_a_token_is_known_at_all_members_at_once(guarded: Guarded) -> None:
    """Whoever logs in at one member may go on at any other: it waits for the entry if it must."""
    cluster = guarded.cluster
    for _ in range(10):
        for member in cluster:
            shown = guarded.log_in(member, "u")
            for other in cluster.others(member):
                found = guarded.ask(other, "stranger", "KV/Range", READ_A, shown)
                assert not isinstance(found, Status), f"{other}: {found}"


def test_who_has_a_certificate_is_known_at_all_members(guarded: Guarded) -> None:
    for member in guarded.cluster:
        put = pb.PutRequest(key=b"a", value=b"%d" % next(_values))
        assert not isinstance(guarded.ask(member, "u", "KV/Put", put), Status)
        assert guarded.ask(member, "stranger", "KV/Put", put) == errors.PERMISSION_DENIED
        assert guarded.ask(member, "", "KV/Put", put) == errors.USER_EMPTY
        refused = guarded.ask(member, "u", "KV/Put", pb.PutRequest(key=b"z"))
        assert refused == errors.PERMISSION_DENIED


def test_a_learner_is_promoted_through_any_member_by_token_and_by_certificate(
    guarded: Guarded,
) -> None:
    """The leader's answer, that this learner never was there, shows that it knows who asks."""
    cluster = guarded.cluster
    request = pb.MemberAddRequest(peerURLs=[NOBODY_LISTENS], isLearner=True)
    through = cluster[0]

    def added() -> int | None:
        answer = through.settled("Cluster/MemberAdd", request)
        if answer == errors.UNHEALTHY:
            return None
        if isinstance(answer, Status):
            # A call before, which nobody answered, has added it.
            assert answer in (errors.PEER_URL_EXIST, errors.MEMBER_EXIST), answer
        (found,) = [each.ID for each in through.members() if each.isLearner]
        identity: int = found
        return identity

    learner = until("a learner is added", added)
    promote = pb.MemberPromoteRequest(ID=learner)
    for member in cluster:
        shown = guarded.log_in(member, "root")
        for name, metadata, expected in (
            ("root", (), errors.LEARNER_NOT_READY),
            (ODD_NAME, (), errors.LEARNER_NOT_READY),
            ("", shown, errors.LEARNER_NOT_READY),
            ("u", (), errors.PERMISSION_DENIED),
            ("root", guarded.log_in(member, "u"), errors.PERMISSION_DENIED),
            ("stranger", (), errors.USER_NOT_FOUND),
            ("", (), errors.USER_EMPTY),
        ):
            found = guarded.ask(member, name, "Cluster/MemberPromote", promote, metadata)
            assert found == expected, (member, name)
    remove = pb.MemberRemoveRequest(ID=learner)
    through.answer("Cluster/MemberRemove", remove, done=errors.MEMBER_NOT_FOUND)


def test_a_users_lease_expires(guarded: Guarded) -> None:
    """The leader revokes it by itself, whoever may write its keys."""
    member = guarded.cluster.followers()[0]
    watch = guarded.client(member, "u").watch(key=b"a/leased")

    def is_leased() -> bool:
        """Put a key with a lease, which may have ended before on a busy machine."""
        lease = guarded.ask(member, "u", "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=1))
        put = pb.PutRequest(key=b"a/leased", lease=lease.ID)
        answer = guarded.ask(member, "u", "KV/Put", put)
        assert not isinstance(answer, Status) or answer == errors.LEASE_NOT_FOUND, answer
        return not isinstance(answer, Status)

    until("a key is put with a lease", is_leased)
    assert [watch.hear().events[0].type for _ in range(2)] == [0, 1]
    watch.close()


def test_health_is_told_to_everybody(guarded: Guarded) -> None:
    for member in guarded.cluster:
        assert guarded.get(member, "/health") == (200, '{"health":"true","reason":""}')
        assert guarded.get(member, "/readyz") == (200, "ok\n")
        status, _ = guarded.get(member, "/metrics")
        assert status == 200


def test_a_member_that_gets_a_snapshot_has_the_users_of_the_others(guarded: Guarded) -> None:
    """Also those that came while it was cut off; and the tokens of those that went are no more."""
    cluster = guarded.cluster
    cluster.settle()
    behind = cluster.followers()[0]
    others = cluster.others(behind)
    shown = guarded.log_in(behind, "gone")
    assert not isinstance(guarded.ask(behind, "", "KV/Range", READ_A, shown), Status)
    size = behind.log_size()
    for other in others:
        cluster.network.sever(behind.node, other.node)
    leader = cluster.leader(others)
    delete = pb.AuthUserDeleteRequest(name="gone")
    leader.answer("Auth/UserDelete", delete, done=errors.USER_NOT_FOUND)
    add = pb.AuthUserAddRequest(name="new", password="new-secret")
    leader.answer("Auth/UserAdd", add, done=errors.USER_ALREADY_EXIST)
    leader.answer("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="new", role="r"))
    cluster.outgrow_logs(others, 500, b"value")
    # Cut off, it knows nothing of that, as with any other data.
    assert not isinstance(guarded.ask(behind, "", "KV/Range", READ_A, shown), Status)
    cluster.network.mend()
    until("a snapshot has arrived", lambda: behind.logged("installed the snapshot", size))
    linearizable = pb.RangeRequest(key=b"a")
    found = guarded.ask(behind, "", "KV/Range", linearizable, shown)
    assert found == errors.INVALID_AUTH_TOKEN
    new = guarded.log_in(behind, "new")
    assert not isinstance(guarded.ask(behind, "", "KV/Range", linearizable, new), Status)
    users = behind.answer("Auth/UserList", pb.AuthUserListRequest()).users
    assert "new" in users and "gone" not in users
    revisions = {
        member.answer("Auth/AuthStatus", pb.AuthStatusRequest()).authRevision for member in cluster
    }
    assert len(revisions) == 1


def test_a_member_that_restarts_has_the_users_and_no_simple_tokens(guarded: Guarded) -> None:
    cluster = guarded.cluster
    cluster.settle()
    member = cluster.followers()[0]
    shown = guarded.log_in(member, "u")
    elsewhere = cluster.others(member)[0]
    # Cleanly: after a crash, the entry of the login may be applied again, and its token known.
    member.terminate()
    member.start()
    cluster.settle()
    assert guarded.ask(member, "", "KV/Range", READ_A, shown) == errors.INVALID_AUTH_TOKEN
    assert not isinstance(guarded.ask(elsewhere, "", "KV/Range", READ_A, shown), Status)
    assert not isinstance(guarded.ask(member, "u", "KV/Range", READ_A), Status)
    assert guarded.ask(member, "", "KV/Range", READ_A) == errors.USER_EMPTY
