"""Members that know each other by certificates, and let nobody else in."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.certificates import Authority, Pair, trusting
from tests.cluster.load import load
from tests.cluster.members import PEER_PORT, Cluster, Member, new_cluster
from tests.waiting import until

REFUSED = {"kvorum": "tls: ", "etcd": "certificate"}


def flags(authority: Path, pair: Pair) -> tuple[str, ...]:
    return (
        f"--peer-cert-file={pair.cert}",
        f"--peer-key-file={pair.key}",
        f"--peer-trusted-ca-file={authority}",
        "--peer-client-cert-auth",
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(
    make: str, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[Cluster]:
    """Three members that speak TLS among them."""
    with new_cluster(tmp_path_factory.mktemp("secure"), make, peer_scheme="https") as cluster:
        hosts = [member.host for member in cluster]
        # The last is where the network dials from.
        pair = authority.issue("member", [*hosts, "127.0.0.1"])
        cluster.flags = flags(authority.cert, pair)
        cluster.start()
        yield cluster


def test_a_cluster_over_tls(secure: Cluster) -> None:
    with load(secure, clerks=2) as work:
        work.await_progress()
        leader = secure.leader()
        leader.kill()
        work.await_progress()
        leader.start()
        work.await_progress()


@pytest.mark.long
def test_renewed_certificates_are_used_without_a_restart(
    secure: Cluster, authority: Authority
) -> None:
    secure.settle()
    hosts = [member.host for member in secure]
    renewed = authority.issue("member", [*hosts, "127.0.0.1"])
    context = trusting(authority.cert)
    context.load_cert_chain(renewed.cert, renewed.key)
    for member in secure:
        until(
            f"{member} shows the new one",
            lambda member=member: shown_serial(member, context) == renewed.serial,  # type: ignore[misc]
        )
    with load(secure, clerks=2) as work:
        for member in secure:
            for other in secure.others(member):
                secure.network.reset(member.node, other.node)
        work.await_progress()


def shown_serial(member: Member, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that a member shows to others."""
    with (
        socket.create_connection((member.host, PEER_PORT)) as connection,
        context.wrap_socket(connection, server_hostname=member.host) as secured,
    ):
        return x509.load_der_x509_certificate(secured.getpeercert(True) or b"").serial_number


@pytest.mark.parametrize(
    "trusting",
    [True, pytest.param(False, marks=pytest.mark.campaign)],
    ids=["it trusts us", "nobody trusts anybody"],
)
def test_a_member_of_another_authority(
    secure: Cluster, make: str, authority: Authority, tmp_path: Path, trusting: bool
) -> None:
    secure.settle()
    other = Authority(tmp_path, "other")
    stranger = secure.followers()[0]
    hosts = [member.host for member in secure]
    pair = other.issue("stranger", [*hosts, "127.0.0.1"])
    members = secure.others(stranger)
    stranger.terminate()
    right, wrong = secure.flags, flags(authority.cert if trusting else other.cert, pair)
    size = stranger.log_size()
    with load(secure, clerks=2) as work:
        secure.flags = wrong
        stranger.start()
        secure.flags = right
        until("it tells the reason", lambda: stranger.logged(REFUSED[make], size))
        secure.leader(members).put(b"secret", b"value")
        work.await_progress()
        status = stranger.status()
        assert status is None or status.leader == 0
        stranger.kill()
        stranger.start()
        secure.settle()
        assert stranger.get(b"secret") == b"value"
