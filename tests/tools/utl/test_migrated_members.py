"""A directory of etcd whose stored members are not those that Raft counts.

Etcd 3.5 could leave a promoted learner a learner, bring a removed member back, or lose one.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.pb.etcdserverpb import MemberListRequest, PutRequest
from kvorum.raft.messages import ConfState
from kvorum.state.membership.agreement import describe_difference, promoted_learners
from kvorum.state.membership.documents import (
    MemberDocument,
    decode_conf_state,
    decode_member,
    encode_conf_state,
    encode_member,
)
from kvorum.storage.backend import open_backend
from kvorum.storage.backend.buckets import CONF_STATE, MEMBERS, MEMBERS_REMOVED, META
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.offline.facts import ClusterBuckets
from tests.etcd import Etcd, running_etcd
from tests.kvorum import running_kvorum
from tests.tools.utl.commands import done, refusal
from tests.tools.utl.facts import change_database
from tests.tools.utl.history import ask, connected

OTHER = MemberDocument(0xBAD, ("http://127.0.0.1:3",), name="other")


def only_member(facts: ClusterBuckets) -> MemberDocument:
    (row,) = facts.buckets[MEMBERS].values()
    return decode_member(row)


def commit(etcd: Etcd) -> None:
    """Have etcd store what it has applied: one that ends soon after its start may not have."""
    etcd.ask("maintenance/defragment")


def store(facts: ClusterBuckets, member: MemberDocument) -> None:
    facts.buckets[MEMBERS][b"%x" % member.id] = encode_member(member)


def unpromoted(facts: ClusterBuckets) -> None:
    store(facts, replace(only_member(facts), is_learner=True))


def reappeared(facts: ClusterBuckets) -> None:
    store(facts, OTHER)


def reappeared_although_removed(facts: ClusterBuckets) -> None:
    store(facts, OTHER)
    facts.buckets[MEMBERS_REMOVED][b"%x" % OTHER.id] = b"removed"


def reappeared_learner(facts: ClusterBuckets) -> None:
    store(facts, replace(OTHER, is_learner=True))


def with_conf_state(facts: ClusterBuckets, **change: Any) -> None:
    document = facts.buckets[META][CONF_STATE]
    conf_state = decode_conf_state(document)._replace(**change)
    facts.buckets[META][CONF_STATE] = encode_conf_state(conf_state)


def missing_voter(facts: ClusterBuckets) -> None:
    with_conf_state(facts, voters=(only_member(facts).id, OTHER.id))


def missing_learner(facts: ClusterBuckets) -> None:
    with_conf_state(facts, learners=(OTHER.id,))


def demoted(facts: ClusterBuckets) -> None:
    """Stored as a voter, counted as a learner."""
    store(facts, OTHER)
    with_conf_state(facts, learners=(OTHER.id,))


@pytest.fixture(params=["newest", "old"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "old":
        request.getfixturevalue("old_etcd")
    with running_etcd(tmp_path / "etcd") as etcd:
        etcd.put(b"key", b"value")
        commit(etcd)
    return tmp_path / "etcd"


def test_a_promoted_learner_is_taken_over_as_a_voter(source: Path, tmp_path: Path) -> None:
    change_database(source, unpromoted)
    ours = tmp_path / "ours"
    done("kvorumutl", "migrate", "--data-dir", source, "--output-dir", ours)
    with running_kvorum(ours) as kvorum, connected(kvorum.address) as client:
        (member,) = ask(client, "Cluster/MemberList", MemberListRequest()).members
        assert not member.isLearner
        ask(client, "KV/Put", PutRequest(key=b"key"))


@pytest.mark.parametrize(
    ("change", "stored", "counted"),
    [
        (reappeared, "voters bad, {id} and learners none", "voters {id} and learners none"),
        (
            reappeared_although_removed,
            "voters bad, {id} and learners none",
            "voters {id} and learners none",
        ),
        (reappeared_learner, "voters {id} and learners bad", "voters {id} and learners none"),
        (missing_voter, "voters {id} and learners none", "voters bad, {id} and learners none"),
        (missing_learner, "voters {id} and learners none", "voters {id} and learners bad"),
        (demoted, "voters bad, {id} and learners none", "voters {id} and learners bad"),
    ],
)
def test_members_that_differ_are_refused(
    tmp_path: Path, change: Callable[[ClusterBuckets], None], stored: str, counted: str
) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        commit(etcd)
    known: list[int] = []

    def changed(facts: ClusterBuckets) -> None:
        known.append(only_member(facts).id)
        change(facts)

    change_database(tmp_path / "etcd", changed)
    out = ("--output-dir", tmp_path / "ours")
    code, text = refusal("migrate", "--data-dir", tmp_path / "etcd", *out)
    (identity,) = known
    assert code == 1 and not (tmp_path / "ours").exists()
    assert f"the store has {stored.format(id=f'{identity:x}')}; " in text
    assert f"raft counts {counted.format(id=f'{identity:x}')}. " in text


def test_a_member_that_starts_corrects_what_it_can(tmp_path: Path) -> None:
    """As after an earlier migration, or a snapshot that a member of etcd 3.5 sent."""
    with running_kvorum(tmp_path):
        pass
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, str(tmp_path / "member" / "backend"), quota_bytes=0)
    ((name, row),) = backend.items(MEMBERS)
    backend.put(MEMBERS, name, encode_member(replace(decode_member(row), is_learner=True)))
    backend.put(MEMBERS, b"%x" % OTHER.id, encode_member(OTHER))
    stage = backend.seal()
    assert stage is not None
    backend.take_committed(
        backend.take_staged(stage.run(files, environments)).run(files, environments)
    )
    backend.close()
    with running_kvorum(tmp_path) as kvorum, connected(kvorum.address) as client:
        members = ask(client, "Cluster/MemberList", MemberListRequest()).members
        assert not any(member.isLearner for member in members)
        said = "".join(kvorum.lines)
        assert f"member {name.decode()} was stored as a learner although it votes" in said
        assert "the stored members are not those of raft" in said
    with running_kvorum(tmp_path) as kvorum:
        assert "was stored as a learner" not in "".join(kvorum.lines)


def test_a_change_in_flight_is_no_difference() -> None:
    members = [MemberDocument(1), MemberDocument(2), MemberDocument(3, is_learner=True)]
    joint = ConfState(voters=(1, 3), voters_outgoing=(1, 2), learners_next=(2,))
    assert [each.id for each in promoted_learners(members, joint)] == [3]
    assert describe_difference(members, joint) == ""
    assert describe_difference(members, ConfState(voters=(1, 2), learners=(3,))) == ""
    assert describe_difference(members, ConfState(voters=(1,), learners=(3,))) != ""
