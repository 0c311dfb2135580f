"""Lines that only clusters log, compared with those of real etcds that were used alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests import etcd
from tests.certificates import Authority
from tests.cluster.members import Cluster, Member, new_cluster
from tests.waiting import until

pytestmark = pytest.mark.long

FLAGS = (
    "--snapshot-count=5",
    "--snapshot-catchup-entries=5",
    "--feature-gates=CompactHashCheck=true",
    "--compact-hash-check-time=1s",
)
KEYS = 50
VALUE = b"value" * 100
HASH_CHECK = "finished compaction hash check"
SENT = "sent database snapshot"
RECOVERED = "recovered/added member from store"
MESSAGES = (HASH_CHECK, "sending database snapshot", SENT, RECOVERED)
BAD_CERTIFICATE = "remote error: tls: bad certificate"

Line = dict[str, Any]


@pytest.fixture(autouse=True)
def _is_target() -> None:
    if not etcd.is_target():
        pytest.skip("older versions log other lines")


def lines_of(member: Member, since: int = 0) -> list[Line]:
    """Return what a member logged from an offset on."""
    # The last line may not be whole yet.
    text, _, _ = member.log.read_bytes()[since:].decode().rpartition("\n")
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]


def told(member: Member, message: str, since: int = 0) -> list[Line]:
    return [line for line in lines_of(member, since) if line["msg"] == message]


def told_by_any(cluster: Cluster, message: str) -> list[Line]:
    """Return what members said of something that the leader does, whoever leads by now."""
    return [line for member in cluster for line in told(member, message)]


def use(make: str, directory: Path) -> list[Line]:
    """Let a follower come back to a leader that has to send its database; return all lines."""
    with new_cluster(directory, make, 3, *FLAGS) as cluster:
        cluster.start()
        leader = cluster.leader()
        for number in range(5):
            leader.put(b"%d" % number)
        leader.answer("KV/Compact", pb.CompactionRequest(revision=4, physical=True))
        until(
            "all hashes were compared",
            lambda: any(
                line["number-of-hashes-checked"] == 1 for line in told_by_any(cluster, HASH_CHECK)
            ),
        )
        behind = cluster.followers()[0]
        since = behind.log_size()
        behind.kill()
        cluster.outgrow_logs(cluster.others(behind), KEYS, VALUE)
        behind.start()
        until("the database was sent", lambda: told_by_any(cluster, SENT))
        # Three by the start, three by the database that came.
        until("members were recovered", lambda: len(told(behind, RECOVERED, since)) >= 6)
        sent, *_ = told_by_any(cluster, SENT)
        assert sent["bytes"] > KEYS * len(VALUE)
        recovered = told(behind, RECOVERED, since)
        ids = {int(line["recovered-remote-peer-id"], 16) for line in recovered}
        assert ids == {each.ID for each in leader.members()}
        assert {line["local-member-id"] for line in recovered} == {sent["remote-peer-id"]}
        return [line for member in cluster for line in lines_of(member)]


def test_lines_of_a_cluster_are_those_of_real_etcds(tmp_path: Path) -> None:
    theirs, ours = (use(make, tmp_path / make) for make in ("etcd", "kvorum"))
    for message in MESSAGES:
        wanted, got = (
            {
                (line["level"], *sorted(set(line) - {"logger"}))
                for line in lines
                if line["msg"] == message
            }
            for lines in (theirs, ours)
        )
        assert wanted == got and len(got) == 1, message


def test_a_member_whose_certificate_has_another_name_is_told(tmp_path: Path) -> None:
    for make in ("etcd", "kvorum"):
        _refuse_a_stranger(tmp_path / make, make)


def _refuse_a_stranger(tmp_path: Path, make: str) -> None:
    authority = Authority(tmp_path / "certificates")
    with new_cluster(tmp_path / "members", make, 3, peer_scheme="https") as cluster:
        hosts = [*(member.host for member in cluster), "127.0.0.1"]
        *_, stranger = cluster
        for member in cluster:
            # As in etcd's own test, the stranger wants its own name of the others, too.
            name = "stranger.com" if member is stranger else "member.com"
            pair = authority.issue(name, hosts)
            member.flags = (
                f"--peer-cert-file={pair.cert}",
                f"--peer-key-file={pair.key}",
                f"--peer-trusted-ca-file={authority.cert}",
                "--peer-client-cert-auth",
                f"--peer-cert-allowed-cn={name}",
            )
            member.start()
        until("the stranger is told", lambda: stranger.logged(BAD_CERTIFICATE))
