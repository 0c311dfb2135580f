"""A new cluster begins as etcd's does; a list that does not fit is refused with the reason."""

from pathlib import Path

import pytest

from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    bootstrap_changes,
    check_initial_cluster,
    check_own_directory,
    initial_members,
    is_bootstrapped,
    match_existing,
    parse_initial_cluster,
)
from kvorum.state.membership.documents import MemberDocument
from kvorum.state.membership.identity import cluster_id, member_id
from tests.state.membership.etcd import founded

THREE = "n1=http://127.0.0.1:21,n2=http://127.0.0.1:22,n3=http://127.0.0.1:23"


@pytest.mark.parametrize(
    ("initial_cluster", "name", "token"),
    [
        (THREE, "n2", "etcd-cluster"),
        # Two URLs of one member, not in order; a name that JSON has to escape; another token.
        (
            'a<"&é\\\u2028>=http://127.0.0.1:32,a<"&é\\\u2028>=http://127.0.0.1:31,'
            "b=https://[::1]:34",
            'a<"&é\\\u2028>',
            "tökén",
        ),
        (",".join(f"m{n}=http://127.0.0.1:{40 + n}" for n in range(7)), "m6", "t"),
    ],
)
def test_founded_as_etcd_does(tmp_path: Path, initial_cluster: str, name: str, token: str) -> None:
    metadata, changes = founded(tmp_path / "etcd", initial_cluster, name, token)
    members = initial_members(parse_initial_cluster(initial_cluster), token)
    assert bootstrap_changes(members) == changes
    assert cluster_id(member.id for member in members) == metadata.ClusterID
    assert [member.id for member in members if member.name == name] == [metadata.NodeID]


def test_the_ids_of_the_documents() -> None:
    first = member_id(["http://127.0.0.1:12380"], "etcd-cluster")
    assert f"{first:x}" == "ddd67b312462fd7b"
    assert f"{cluster_id([first]):x}" == "a7ef944b95711739"


def test_a_list_by_name() -> None:
    parsed = parse_initial_cluster("b=http://h:2,a=http://h:4,,b= http://h:1")
    assert parsed == {"b": ("http://h:1", "http://h:2"), "a": ("http://h:4",)}
    assert parse_initial_cluster("") == {}


@pytest.mark.parametrize(
    "text", ["a", "a=", "a=h:1", "a=http://h", "a=http://h:1/p", "a=ftp://h:1"]
)
def test_a_list_with_a_bad_url(text: str) -> None:
    with pytest.raises(ClusterSettingsError, match=f"error setting up initial cluster: .*={text}"):
        parse_initial_cluster(text)


@pytest.mark.parametrize(
    ("text", "name", "advertised", "problem"),
    [
        ("", "a", None, 'local name "a" in .* is empty'),
        ("b=http://h:1", "a", None, 'couldn\'t find local name "a"'),
        ("a=http://h:1,b=http://h:1", "a", None, "has duplicate url: http://h:1"),
        ("a=http://h:1", "a", ["http://h:2"], "--initial-advertise-peer-urls=http://h:2"),
    ],
)
def test_a_list_that_does_not_fit_this_member(
    text: str, name: str, advertised: list[str] | None, problem: str
) -> None:
    with pytest.raises(ClusterSettingsError, match=problem):
        check_initial_cluster(parse_initial_cluster(text), name, advertised)


def test_a_list_that_fits() -> None:
    cluster = parse_initial_cluster("a=http://name:1,a=http://name:2,b=http://h:3")
    check_initial_cluster(cluster, "a", ["http://name:2", "http://name:1"])
    check_initial_cluster(cluster, "b")
    addresses = ["http://10.0.0.1:1", "http://10.0.0.1:2"]
    check_initial_cluster(
        cluster, "a", addresses, resolve=lambda url: url.replace("name", "10.0.0.1")
    )


def test_members_with_one_url_have_one_id() -> None:
    with pytest.raises(ClusterSettingsError, match=r"b and a have the same peer URLs http://h:1"):
        initial_members({"a": ("http://h:1",), "b": ("http://h:1",)}, "token")


EXISTING = [
    MemberDocument(9, ("http://h:1",), name="a", client_urls=("http://c:1",)),
    MemberDocument(4, ("http://h:3", "http://h:2"), name="b"),
    MemberDocument(7, ("http://h:5",), is_learner=True),
]


def test_a_joining_member_takes_ids_from_the_cluster() -> None:
    local = parse_initial_cluster("a=http://h:1,b=http://h:2,b=http://h:3,new=http://h:5")
    assert match_existing(local, EXISTING) == [
        MemberDocument(4, ("http://h:2", "http://h:3"), name="b"),
        MemberDocument(7, ("http://h:5",), is_learner=True, name="new"),
        MemberDocument(9, ("http://h:1",), name="a"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=http://h:1,new=http://h:5", "member count is unequal: the cluster has 3"),
        ("a=http://h:1,b=http://h:2,new=http://h:5", r"no match found for existing member \(4,"),
    ],
)
def test_a_cluster_that_is_not_the_one_expected(text: str, problem: str) -> None:
    with pytest.raises(ClusterSettingsError, match=problem):
        match_existing(parse_initial_cluster(text), EXISTING)


def test_a_member_that_ran_before() -> None:
    assert is_bootstrapped(EXISTING, 9)
    assert not is_bootstrapped(EXISTING, 4)
    assert not is_bootstrapped(EXISTING, 5)


A, B, C = (
    MemberDocument(identity, (f"http://{name}:1", f"http://{name}:2"), name=name)
    for identity, name in enumerate("abc", 1)
)
NEW = MemberDocument(4, ("http://d:1",), is_learner=True)


@pytest.mark.parametrize(
    ("name", "advertised", "initial_cluster"),
    [
        ("a", "http://a:1", ""),
        ("default", "http://localhost:2380", ""),  # a restart without flags
        ("renamed", "http://a:1", ""),
        ("a", "http://moved:1", ""),
        ("c", "http://a:2", ""),  # a name may be used twice
        ("a", "http://c:1", ""),  # moved to where c was, which this member has not heard of
        ("renamed", "http://moved:1", "renamed=http://moved:1"),
        ("renamed", "http://a:1", "a=http://a:1,b=http://b:1"),  # as it was founded
    ],
)
def test_flags_that_may_be_this_members(name: str, advertised: str, initial_cluster: str) -> None:
    listed = parse_initial_cluster(initial_cluster)
    check_own_directory([A, B, C, NEW], A.id, name, [advertised], listed)


@pytest.mark.parametrize(
    ("members", "name", "advertised", "initial_cluster"),
    [
        ([A, B, C], "c", "http://c:1", ""),
        ([A, B, C], "c", "http://moved:1", ""),
        ([A, B, C], "renamed", "http://c:2", ""),
        ([A, B, NEW], "d", "http://d:1", ""),
        # Copied before c was there.
        ([A, B], "c", "http://c:1", "a=http://a:1,b=http://b:1,c=http://c:1"),
    ],
)
def test_flags_that_are_another_members(
    members: list[MemberDocument], name: str, advertised: str, initial_cluster: str
) -> None:
    listed = parse_initial_cluster(initial_cluster)
    with pytest.raises(
        ClusterSettingsError, match=r"is that of member 1, a at .* its own directory"
    ):
        check_own_directory(members, A.id, name, [advertised], listed)
    check_own_directory(members, 7, name, [advertised], {})  # it does not know itself yet
