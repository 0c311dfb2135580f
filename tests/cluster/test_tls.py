"""Members that know each other by certificates, and let nobody else in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority, Pair
from tests.cluster.load import load
from tests.cluster.members import Cluster, new_cluster, until

pytestmark = pytest.mark.timeout(120)


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
        work.go_on()
        leader = secure.leader()
        leader.kill()
        work.go_on()
        leader.start()
        work.go_on()


@pytest.mark.parametrize("trusting", [True, False], ids=["it trusts us", "nobody trusts anybody"])
def test_a_member_of_another_authority(
    secure: Cluster, authority: Authority, tmp_path: Path, trusting: bool
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
        until("it tells of the certificates", lambda: stranger.logged("certificate", size))
        secure.leader(members).put(b"secret", b"value")
        work.go_on()
        status = stranger.status()
        assert status is None or status.leader == 0
        stranger.kill()
        stranger.start()
        secure.settle()
        assert stranger.get(b"secret") == b"value"
