"""The cluster's members against a plain model, through restarts; and what cannot be."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvorum.api.errors import (
    MEMBER_BAD_URLS,
    MEMBER_EXIST,
    MEMBER_NOT_ENOUGH_STARTED,
    MEMBER_NOT_FOUND,
    MEMBER_NOT_LEARNER,
    PEER_URL_EXIST,
    TOO_MANY_LEARNERS,
    Status,
)
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.state.membership import MemberDocument, Membership, MembershipError, Version
from kvorum.state.membership.documents import encode_member, encode_promotion
from kvorum.storage.backend.buckets import CLUSTER, MEMBERS, MEMBERS_REMOVED, META
from tests.database import Database

IDS = st.sampled_from([1, 0x2A, (1 << 64) - 1])
URLS = st.lists(st.sampled_from(["http://h:1", "http://h:2", "http://h:3"]), min_size=1, max_size=2)
VERSIONS = st.builds(Version, st.just(3), st.integers(5, 7), st.just(0))


def add(member: MemberDocument) -> ConfChange:
    kind = ChangeType.ADD_LEARNER_NODE if member.is_learner else ChangeType.ADD_NODE
    return ConfChange(kind, member.id, encode_member(member), 77)


def update(member_id: int, *urls: str) -> ConfChange:
    member = MemberDocument(member_id, urls)
    return ConfChange(ChangeType.UPDATE_NODE, member_id, encode_member(member))


def promote(member_id: int) -> ConfChange:
    return ConfChange(ChangeType.ADD_NODE, member_id, encode_promotion(member_id))


def remove(member_id: int) -> ConfChange:
    return ConfChange(ChangeType.REMOVE_NODE, member_id)


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory: tempfile.TemporaryDirectory[str] | None = None
        self.members: dict[int, MemberDocument] = {}
        self.removed: set[int] = set()
        self.versions: dict[str, Version | None] = {}

    @initialize(in_lmdb=st.integers(0, 9).map(lambda draw: draw == 0))
    def open(self, in_lmdb: bool) -> None:
        if in_lmdb:
            self.directory = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.directory.name) if self.directory else None)
        self.cluster = Membership(self.database.backend, 5, 1)

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        if self.directory is not None:
            self.directory.cleanup()

    def apply(self, change: ConfChange, *expected: tuple[bool, Status]) -> bool:
        """Apply a change; the first condition that holds says how it is refused."""
        refusal = next((status for holds, status in expected if holds), None)
        assert self.cluster.validate(change) == refusal
        assert self.cluster.apply(change) == refusal
        return refusal is None

    def is_taken(self, member_id: int, urls: list[str]) -> bool:
        others = [member for member in self.members.values() if member.id != member_id]
        return any(url in other.peer_urls for other in others for url in urls)

    @rule(member_id=IDS, urls=URLS, is_learner=st.booleans(), name=st.sampled_from(["", "n"]))
    def add(self, member_id: int, urls: list[str], is_learner: bool, name: str) -> None:
        member = MemberDocument(member_id, tuple(urls), is_learner, name)
        if self.apply(
            add(member),
            (member_id in self.removed, MEMBER_NOT_FOUND),
            (member_id in self.members, MEMBER_EXIST),
            (self.is_taken(member_id, urls), PEER_URL_EXIST),
            (
                is_learner and any(each.is_learner for each in self.members.values()),
                TOO_MANY_LEARNERS,
            ),
        ):
            self.members[member_id] = member

    @rule(member_id=IDS)
    def remove(self, member_id: int) -> None:
        voters = [each.id for each in self.members.values() if not each.is_learner]
        if self.apply(
            remove(member_id),
            (member_id not in self.members, MEMBER_NOT_FOUND),
            (voters == [member_id], MEMBER_NOT_ENOUGH_STARTED),
        ):
            del self.members[member_id]
            self.removed.add(member_id)

    @rule(member_id=IDS, urls=URLS | st.sampled_from([[], ["ftp://h:1"], ["http://h:1/p"]]))
    def update(self, member_id: int, urls: list[str]) -> None:
        if self.apply(
            update(member_id, *urls),
            (member_id not in self.members, MEMBER_NOT_FOUND),
            (
                not urls or any(not url.startswith("http://h:") or "/p" in url for url in urls),
                MEMBER_BAD_URLS,
            ),
            (self.is_taken(member_id, urls), PEER_URL_EXIST),
        ):
            self.members[member_id] = replace(self.members[member_id], peer_urls=tuple(urls))

    @rule(member_id=IDS)
    def promote(self, member_id: int) -> None:
        member = self.members.get(member_id)
        if self.apply(
            promote(member_id),
            (member is None, MEMBER_NOT_FOUND),
            (member is not None and not member.is_learner, MEMBER_NOT_LEARNER),
        ):
            self.members[member_id] = replace(self.members[member_id], is_learner=False)

    @rule(member_id=IDS, name=st.sampled_from(["", "a", "b"]), urls=URLS)
    def publish(self, member_id: int, name: str, urls: list[str]) -> None:
        if member_id in self.members:
            self.cluster.set_attributes(member_id, name, tuple(urls))
            self.members[member_id] = replace(
                self.members[member_id], name=name, client_urls=tuple(urls)
            )
        elif member_id in self.removed:
            self.cluster.set_attributes(member_id, name, tuple(urls))
        else:
            with pytest.raises(MembershipError, match=f"member {member_id:x} publishes itself"):
                self.cluster.set_attributes(member_id, name, tuple(urls))

    @rule(version=VERSIONS, downgrade=st.none() | VERSIONS)
    def agree(self, version: Version, downgrade: Version | None) -> None:
        self.cluster.set_version(version)
        self.cluster.set_downgrade_target(downgrade)
        self.cluster.set_storage_version(version)
        self.versions = {
            "version": version,
            # A storage of 3.5 and older carries no version.
            "storage_version": max(version, Version(3, 5)) if version < (3, 6) else version,
            "downgrade_target": downgrade,
        }

    @rule()
    def restart(self) -> None:
        self.database.flush()
        self.cluster = Membership(self.database.reopen(), 5, 1)
        self.cluster.restore()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cluster"):
            return
        cluster, expected = self.cluster, [self.members[each] for each in sorted(self.members)]
        assert cluster.members == expected
        assert cluster.voters == [each for each in expected if not each.is_learner]
        assert cluster.learners == [each for each in expected if each.is_learner]
        assert cluster.removed == sorted(self.removed)
        assert all(cluster.is_removed(each) for each in self.removed)
        assert all(cluster.member(each.id) == each for each in expected)
        assert cluster.is_learner == any(each.id == 1 and each.is_learner for each in expected)
        for name in ("version", "storage_version", "downgrade_target"):
            assert getattr(cluster, name) == self.versions.get(name)


def test_cluster_and_model_agree() -> None:
    run_state_machine_as_test(
        ClusterMachine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )


def test_rows_are_etcds() -> None:
    database = Database()
    cluster = Membership(database.backend, 5, 1)
    cluster.apply(add(MemberDocument(0xABC, ("http://h:1",), True)))
    cluster.apply(remove(0xABC))
    cluster.apply(add(MemberDocument(0xD, ("http://h:2",), True)))
    cluster.set_attributes(0xD, "n", ("http://c:1",))
    cluster.set_version(Version(3, 7))
    cluster.set_storage_version(Version(3, 7))
    cluster.set_downgrade_target(Version(3, 6))
    member = b'{"id":13,"peerURLs":["http://h:2"],"isLearner":true,"name":"n",'
    backend = database.backend
    assert backend.items(MEMBERS) == [(b"d", member + b'"clientURLs":["http://c:1"]}')]
    assert backend.items(MEMBERS_REMOVED) == [(b"abc", b"removed")]
    downgrade = b'{"target-version":"3.6.0","enabled":true}'
    assert backend.items(CLUSTER) == [(b"clusterVersion", b"3.7.0"), (b"downgrade", downgrade)]
    assert backend.get(META, b"storageVersion") == b"3.7.0"


class CountedUrl(str):
    """A URL that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedUrl.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_each_of_many_urls_in_the_log_is_looked_up_once() -> None:
    # etcd limits their number only by the size of a request.
    cluster = Membership(Database().backend, 5, 1)
    for number in (1, 2):
        urls = tuple(f"http://h{number}:{port}" for port in range(10_000))
        assert cluster.apply(add(MemberDocument(number, urls))) is None
    assert cluster.apply(update(1, *(f"http://h3:{port}" for port in range(10_000)))) is None
    assert cluster.apply(update(1, "http://h3:1", "http://h2:9999")) == PEER_URL_EXIST
    wanted = tuple(CountedUrl(f"http://h4:{port}") for port in range(10_000))
    CountedUrl.compared = 0
    assert not cluster._is_url_taken(1, wanted)
    assert CountedUrl.compared < 10 * len(wanted)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (ConfChange(ChangeType.ADD_NODE, 1, b"{"), "change of node 1: .* is not JSON"),
        (ConfChange(ChangeType.ADD_NODE, 1, b""), "change of node 1: .* is not JSON"),
        (ConfChange(ChangeType.UPDATE_NODE, 1, encode_promotion(2)), "1names member 2"),
    ],
)
def test_a_change_that_nobody_proposes_stops_the_member(change: ConfChange, problem: str) -> None:
    cluster = Membership(Database().backend, 5, 1)
    with pytest.raises(MembershipError, match=problem):
        cluster.apply(change)


@pytest.mark.parametrize(
    ("bucket", "key", "value"),
    [
        (MEMBERS, b"1", b"x"),
        (MEMBERS_REMOVED, b"x", b"removed"),
        (CLUSTER, b"clusterVersion", b"3"),
    ],
)
def test_damaged_rows_are_noticed(bucket: bytes, key: bytes, value: bytes) -> None:
    database = Database()
    database.backend.put(bucket, key, value)
    with pytest.raises(MembershipError, match="the stored membership cannot be read"):
        Membership(database.backend, 5, 1).restore()
