"""What a member asks before its first start, answered by members that are told what to say."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from kvorum.server.peer.cluster.exchanges import Answer
from kvorum.server.peer.cluster.joining import GetRequest, Joined, check_new, join
from kvorum.state.membership.bootstrap import ClusterSettingsError, initial_members
from kvorum.state.membership.documents import MemberDocument, encode_members
from kvorum.state.membership.identity import cluster_id

URLS = {f"m{number}": (f"http://m{number}:2380",) for number in range(4)}
NAME = "m3"
MEMBERS = [
    MemberDocument(
        each.id, each.peer_urls, name=each.name, client_urls=(f"http://{each.name}:2379",)
    )
    for each in initial_members({name: URLS[name] for name in ("m0", "m1", "m2")}, "token")
]
ADDED = MemberDocument(0x1234, URLS[NAME], is_learner=True)
CLUSTER = cluster_id(each.id for each in MEMBERS)


def drive(steps: Generator[GetRequest, Answer | None, Any], answers: dict[str, Any]) -> Any:
    """Answer what is asked; return what the steps return, and what they asked."""
    answer: Answer | None = None
    asked: list[str] = []
    while True:
        try:
            asking = steps.send(answer)
        except StopIteration as end:
            return end.value, asked
        asked.append(asking.url + asking.target)
        answer = answers.get(asked[-1])


def members(*known: MemberDocument, cluster: int = CLUSTER) -> Answer:
    body = encode_members(known) + b"\n"
    return Answer(200, {"x-etcd-cluster-id": f"{cluster:x}"}, body)


def version(cluster: str, server: str = "3.7.1") -> Answer:
    body = json.dumps({"etcdserver": server, "etcdcluster": cluster}).encode()
    return Answer(200, {}, body)


def running(cluster_version: str = "3.7.0", *known: MemberDocument) -> dict[str, Answer]:
    """All three members answer alike."""
    found = {}
    for name in ("m0", "m1", "m2"):
        url = URLS[name][0]
        found[f"{url}/members"] = members(*(known or (*MEMBERS, ADDED)))
        found[f"{url}/version"] = version(cluster_version)
        found[f"{url}/downgrade/enabled"] = Answer(200, {}, b"false")
    return found


def joined(answers: dict[str, Answer]) -> Joined:
    found: Joined = drive(join(URLS, NAME, "3.7.1"), answers)[0]
    return found


def test_a_member_joins_under_the_id_it_was_given() -> None:
    found = joined(running())
    assert (found.member_id, found.cluster_id) == (ADDED.id, CLUSTER)
    assert {each.id for each in found.members} == {ADDED.id, *(each.id for each in MEMBERS)}


def test_the_first_good_answer_counts() -> None:
    answers = running()
    answers["http://m0:2380/members"] = Answer(503, {}, b"")
    answers["http://m1:2380/members"] = members()
    del answers["http://m0:2380/version"]
    found, asked = drive(join(URLS, NAME, "3.7.1"), answers)
    assert found.member_id == ADDED.id
    assert [each for each in asked if each.endswith("/members")] == [
        f"http://m{number}:2380/members" for number in range(3)
    ]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Answer(404, {}, b"404 page not found\n"),
        Answer(200, {}, encode_members(MEMBERS)),
        Answer(200, {"x-etcd-cluster-id": "not hex"}, encode_members(MEMBERS)),
        Answer(200, {"x-etcd-cluster-id": "1"}, b"garbage"),
        Answer(200, {"x-etcd-cluster-id": "1"}, b'{"id":1}'),
        members(),
    ],
    ids=["none", "404", "no cluster", "bad cluster", "garbage", "no list", "no members"],
)
def test_nobody_tells_who_the_members_are(answer: Answer | None) -> None:
    answers = {f"http://m{number}:2380/members": answer for number in range(3)}
    with pytest.raises(
        ClusterSettingsError, match=r"cannot fetch cluster info from peer urls.*m0:2380"
    ):
        drive(join(URLS, NAME, "3.7.1"), answers)


def test_the_list_must_be_the_clusters() -> None:
    with pytest.raises(ClusterSettingsError, match="member count is unequal"):
        joined(running("3.7.0", *MEMBERS))
    stranger = MemberDocument(9, ("http://stranger:2380",), is_learner=True)
    with pytest.raises(ClusterSettingsError, match=r"no match found for existing member \(9"):
        joined(running("3.7.0", *MEMBERS, stranger))


def test_a_member_that_has_run_before_needs_its_log() -> None:
    known = MemberDocument(ADDED.id, ADDED.peer_urls, name=NAME, client_urls=("http://m3:2379",))
    with pytest.raises(
        ClusterSettingsError, match=r"1234 has already been bootstrapped.*member remove"
    ):
        joined(running("3.7.0", *MEMBERS, known))


def test_one_that_knows_of_an_earlier_life_is_enough() -> None:
    """The first to answer may lag behind, and not have heard that the member has run."""
    known = MemberDocument(ADDED.id, ADDED.peer_urls, name=NAME, client_urls=("http://m3:2379",))
    answers = running() | {"http://m2:2380/members": members(*MEMBERS, known)}
    with pytest.raises(
        ClusterSettingsError, match=r"1234 has already been bootstrapped.*member remove"
    ):
        joined(answers)
    # What another cluster says of the same id is of no concern.
    answers |= {"http://m2:2380/members": members(*MEMBERS, known, cluster=CLUSTER + 1)}
    assert joined(answers).member_id == ADDED.id


@pytest.mark.parametrize("own", ["3.0.0", "3.5.1", "3.6.0", "3.7.0"])
def test_clusters_of_this_version_or_older_are_joined(own: str) -> None:
    assert joined(running(own)).member_id == ADDED.id


@pytest.mark.parametrize("other", ["3.8.0", "4.0.0", "2.3.0", "garbage"])
def test_other_clusters_are_not(other: str) -> None:
    with pytest.raises(ClusterSettingsError, match="incompatible with current running cluster"):
        joined(running(other))


def test_a_cluster_without_a_version_yet_is_joined_if_any_it_may_agree_on_fits() -> None:
    undecided = running("not_decided")
    assert joined(undecided).member_id == ADDED.id
    with pytest.raises(ClusterSettingsError, match=r"runs with 3\.8\.2"):
        joined(undecided | {"http://m2:2380/version": version("not_decided", "3.8.2")})
    for number in range(3):
        undecided[f"http://m{number}:2380/version"] = version("not_decided", "garbage")
    with pytest.raises(ClusterSettingsError, match="no member reported its version"):
        joined(undecided)


def test_one_member_of_a_version_that_does_not_fit_is_enough() -> None:
    answers = running() | {"http://m2:2380/version": version("3.8.0")}
    with pytest.raises(ClusterSettingsError, match=r"runs with 3\.8\.0"):
        joined(answers)


def test_a_cluster_on_its_way_down_takes_the_version_below() -> None:
    downgrading = {
        f"http://m{number}:2380/downgrade/enabled": Answer(200, {}, b"true") for number in range(3)
    }
    assert joined(running("3.8.0") | downgrading).member_id == ADDED.id
    with pytest.raises(ClusterSettingsError, match="incompatible"):
        joined(running("3.9.0") | downgrading)


def founded(answers: dict[str, Any]) -> None:
    drive(check_new({name: URLS[name] for name in ("m0", "m1", "m2")}, "token", "m0"), answers)


def test_a_new_member_is_known_to_nobody() -> None:
    founded({})
    founded(
        {
            "http://m1:2380/members": members(
                *(MemberDocument(each.id, each.peer_urls) for each in MEMBERS)
            )
        }
    )
    # Of another cluster, whose ids are others.
    founded({"http://m2:2380/members": members(ADDED)})


def test_a_new_member_that_others_know_has_lost_its_log() -> None:
    local = initial_members({name: URLS[name] for name in ("m0", "m1", "m2")}, "token")
    (own,) = (each for each in local if each.name == "m0")
    with pytest.raises(ClusterSettingsError, match=f"{own.id:x} has already been bootstrapped"):
        founded({"http://m2:2380/members": members(*MEMBERS)})
    lagging = members(*(MemberDocument(each.id, each.peer_urls) for each in MEMBERS))
    with pytest.raises(ClusterSettingsError, match=f"{own.id:x} has already been bootstrapped"):
        founded({"http://m1:2380/members": lagging, "http://m2:2380/members": members(*MEMBERS)})
