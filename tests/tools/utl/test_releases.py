"""Directories as other releases of etcd write them, taken over and given back.

They are made from a real etcd's by taking away, or changing, what tells the releases apart: before
3.5 a database does not name voters and term, and 3.8 writes no `.snap` files.
"""

from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    AuthRoleAddRequest,
    AuthUserAddRequest,
    AuthUserGrantRoleRequest,
    AuthUserListRequest,
    MemberListRequest,
)
from kvorum.storage.backend.buckets import (
    CLUSTER,
    CLUSTER_VERSION,
    CONF_STATE,
    MEMBERS,
    META,
    STORAGE_VERSION,
    TERM,
)
from kvorum.tools.offline.facts import ClusterBuckets
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.server.rpc.oracle import Oracle
from tests.tools.utl.commands import done, refusal
from tests.tools.utl.facts import Change, change_database
from tests.tools.utl.history import Sight, ask, connected, perform, random_calls


class Everything:
    """What a client sees of keys and leases, and of members, users and alarms."""

    def __init__(self, client: Oracle) -> None:
        self.sight = Sight(client)
        members = ask(client, "Cluster/MemberList", MemberListRequest())
        self.ids = members.header.cluster_id, members.header.member_id
        self.members = [
            (each.ID, each.name, list(each.peerURLs), each.isLearner) for each in members.members
        ]
        self.users = list(ask(client, "Auth/UserList", AuthUserListRequest()).users)
        alarms = ask(client, "Maintenance/Alarm", AlarmRequest(action=AlarmRequest.GET))
        self.alarms = [(each.memberID, each.alarm) for each in alarms.alarms]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Everything) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def fill(client: Oracle) -> None:
    perform(client, random_calls(21, 120), compactions=1)
    ask(client, "Auth/RoleAdd", AuthRoleAddRequest(name="reader"))
    ask(client, "Auth/UserAdd", AuthUserAddRequest(name="someone", password="secret"))
    ask(client, "Auth/UserGrantRole", AuthUserGrantRoleRequest(user="someone", role="reader"))
    ask(
        client,
        "Maintenance/Alarm",
        AlarmRequest(action=AlarmRequest.ACTIVATE, memberID=7, alarm="NOSPACE"),
    )


def of_34(facts: ClusterBuckets) -> None:
    facts.buckets[CLUSTER][CLUSTER_VERSION] = b"3.4.0"
    for name in (CONF_STATE, TERM, STORAGE_VERSION):
        facts.buckets[META].pop(name, None)


def of_38(facts: ClusterBuckets) -> None:
    facts.buckets[CLUSTER][CLUSTER_VERSION] = b"3.8.0"
    facts.buckets[META][STORAGE_VERSION] = b"3.8.0"


def without_snap_files(data: Path) -> None:
    for each in (data / "member" / "snap").glob("*.snap"):
        each.unlink()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(None, id="own"),
        pytest.param(of_34, id="3.4", marks=pytest.mark.long),
        pytest.param(of_38, id="3.8", marks=pytest.mark.long),
    ],
)
def test_a_member_goes_there_and_back(tmp_path: Path, change: Change | None) -> None:
    source, ours, back = tmp_path / "source", tmp_path / "ours", tmp_path / "back"
    # 3.5.1 loses the end of its log at a stop if it need not sync.
    syncs = () if is_target() else ("--unsafe-no-fsync=false",)
    with (
        running_etcd(source, "--snapshot-count=30", *syncs) as etcd,
        connected(etcd.address) as oracle,
    ):
        fill(oracle)
        expected = Everything(oracle)
    if change is not None:
        change_database(source, change)
    done("kvorumutl", "migrate", "--data-dir", source, "--output-dir", ours)
    with running_kvorum(ours) as kvorum, connected(kvorum.address) as client:
        assert Everything(client) == expected
    version = "3.7" if is_target() else "3.5"
    give = ("migrate", "--to-etcd", "--target-version", version, "--data-dir", ours)
    done("kvorumutl", *give, "--output-dir", back)
    with running_etcd(back) as etcd, connected(etcd.address) as oracle:
        assert Everything(oracle) == expected


@pytest.mark.long
def test_a_log_without_snap_files_is_read_from_its_records(tmp_path: Path) -> None:
    source, ours, back, again = (tmp_path / name for name in ("source", "ours", "back", "again"))
    with running_etcd(source) as etcd, connected(etcd.address) as oracle:
        fill(oracle)
        expected = Everything(oracle)
    done("kvorumutl", "migrate", "--data-dir", source, "--output-dir", ours)
    # What is given back has no entries before its snapshot.
    done("kvorumutl", "migrate", "--to-etcd", "--data-dir", ours, "--output-dir", back)
    without_snap_files(back)
    change_database(back, of_38)
    done("kvorumutl", "migrate", "--data-dir", back, "--output-dir", again)
    with running_kvorum(again) as kvorum, connected(kvorum.address) as client:
        assert Everything(client) == expected


def test_a_member_of_a_newer_cluster_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with running_etcd(source) as etcd:
        etcd.put(b"key", b"value")

    def with_two_members(facts: ClusterBuckets) -> None:
        of_38(facts)
        ((_, member),) = facts.items(MEMBERS)
        facts.buckets[MEMBERS][b"1"] = member.replace(member[6:26].split(b",")[0], b"1")

    change_database(source, with_two_members)
    code, text = refusal("migrate", "--data-dir", source, "--output-dir", tmp_path / "ours")
    assert code == 1 and "etcdctl downgrade enable 3.7" in text
    assert not (tmp_path / "ours").exists()


def test_versions_that_cannot_be_given_are_refused(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    with running_kvorum(ours):
        pass
    for version in ("3.3", "3.9", "4.0"):
        code, text = refusal(
            "migrate", "--to-etcd", "--target-version", version, "--data-dir", ours,
            "--output-dir", tmp_path / "etcd",
        )  # fmt: skip
        assert code == 1 and "expected one from 3.4.0 to 3.8.0" in text
