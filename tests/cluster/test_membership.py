"""Members that come, go and are replaced, by commands through every member."""

import shutil
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.load import load
from tests.cluster.members import PASSING, Cluster, Member, running_cluster
from tests.cluster.processes import ASKS_LONGER
from tests.cluster.starvation import Machine, again_if_starved
from tests.etcd import is_target
from tests.waiting import until


def listed(through: Member, identity: int) -> pb.Member:
    members: list[pb.Member] = [each for each in through.members() if identity == each.ID]
    (found,) = members
    return found


_ports = count(10_000)


def somewhere() -> str:
    """Return a peer URL where nobody listens: a member added with one never starts."""
    return f"http://127.0.0.1:{next(_ports)}"


def change(through: Member, name: str, request: Message) -> Any:
    """Ask for a change of the membership.

    Raft drops one that comes before the leader has applied the last; then there is no answer.
    """

    def answer() -> Any:
        found = through.ask(f"Cluster/{name}", request, timeout=3)
        return None if is_unheard(found) else found

    return until(f"{through} answers {name}", answer)


def is_unheard(answer: object) -> bool:
    """Return whether it is unknown if a change was made."""
    return isinstance(answer, Status) and (
        answer in PASSING or answer.code is Code.DEADLINE_EXCEEDED
    )


def succeed(
    through: Member, name: str, request: Message, again: Status, *, is_there: Sequence[Status]
) -> Any:
    """Make a change, as soon as it is not refused with `again`; return the answer.

    It is one of `is_there` if a call before, which nobody answered, has made it.
    """
    was_unheard = False

    def answer() -> Any:
        nonlocal was_unheard
        found = through.ask(f"Cluster/{name}", request, timeout=3)
        if is_unheard(found):
            was_unheard = True
            return None
        if found == again:
            return None
        refused = isinstance(found, Status) and not (was_unheard and found in is_there)
        assert not refused, f"{through}: {name} {request}: {found}"
        return found

    return until(f"{through} answers {name}", answer)


def add(through: Member, peer_url: str, *, is_learner: bool = False) -> int:
    """Add a member to the cluster, as soon as its peers are said to be healthy; return its id."""
    request = pb.MemberAddRequest(peerURLs=[peer_url], isLearner=is_learner)
    there = (errors.PEER_URL_EXIST, errors.MEMBER_EXIST)
    answer = succeed(through, "MemberAdd", request, errors.UNHEALTHY, is_there=there)
    if not isinstance(answer, Status):
        added: int = answer.member.ID
        return added
    ids: list[int] = [each.ID for each in through.members() if list(each.peerURLs) == [peer_url]]
    (found,) = ids
    return found


def remove(through: Member, identity: int) -> None:
    request = pb.MemberRemoveRequest(ID=identity)
    there = (errors.MEMBER_NOT_FOUND,)
    succeed(through, "MemberRemove", request, errors.UNHEALTHY, is_there=there)


def promote(through: Member, identity: int) -> None:
    request = pb.MemberPromoteRequest(ID=identity)
    there = (errors.MEMBER_NOT_LEARNER,)
    succeed(through, "MemberPromote", request, errors.LEARNER_NOT_READY, is_there=there)


def refused_addition(through: Member, request: pb.MemberAddRequest) -> Any:
    """Ask for a member that is refused, as soon as its peers are said to be healthy."""

    def answer() -> Any:
        found = change(through, "MemberAdd", request)
        return None if found == errors.UNHEALTHY else found

    return until(f"{through} refuses a member", answer)


@again_if_starved
def test_an_empty_disk_is_no_member(tmp_path_factory: pytest.TempPathFactory, make: str) -> None:
    directory = tmp_path_factory.mktemp("empty")
    with running_cluster(directory, make) as cluster, load(cluster, clerks=2) as work:
        lost = cluster.followers()[0]
        saved = lost.data.with_suffix(".saved")
        work.await_progress()
        lost.kill()
        lost.data.rename(saved)
        machine = Machine(cluster)
        # A real etcd that is told to join begins anew, and ends at the first heartbeat.
        for state in ("new", "existing") if make == "kvorum" else ("new",):
            size = lost.log_size()
            lost.start(state=state, change=ASKS_LONGER if make == "kvorum" else "")
            until("it ends or serves", lambda: not lost.is_running or lost.status())
            told = lost.logged("has already been bootstrapped", size)
            what = f"{lost} was not told that it is known: {lost.log_tail()}"
            if make == "kvorum":
                assert told >= 1, what
            machine.expect(told >= 1, what)
            assert lost.wait() == 1
            work.await_progress()
            shutil.rmtree(lost.data, ignore_errors=True)
        saved.rename(lost.data)


@pytest.mark.long
def test_commands_through_every_member(cluster: Cluster) -> None:
    for member in cluster:
        url = somewhere()
        learner = add(member, url, is_learner=True)
        added = listed(member, learner)
        assert added.isLearner and not added.name and list(added.peerURLs) == [url]
        # The same second makes the same id.
        again = refused_addition(member, pb.MemberAddRequest(peerURLs=[url]))
        assert again in (errors.PEER_URL_EXIST, errors.MEMBER_EXIST)
        another = pb.MemberAddRequest(peerURLs=[somewhere()], isLearner=True)
        assert refused_addition(member, another) == errors.TOO_MANY_LEARNERS
        for identity, expected in (
            (learner, errors.LEARNER_NOT_READY),
            (cluster[0].id, errors.MEMBER_NOT_LEARNER),
            (5, errors.MEMBER_NOT_FOUND),
        ):
            promotion = pb.MemberPromoteRequest(ID=identity)
            assert change(member, "MemberPromote", promotion) == expected
        update = pb.MemberUpdateRequest(ID=learner, peerURLs=[cluster[1].peer_url])
        assert change(member, "MemberUpdate", update) == errors.PEER_URL_EXIST
        unknown = pb.MemberUpdateRequest(ID=5, peerURLs=[somewhere()])
        assert change(member, "MemberUpdate", unknown) == errors.MEMBER_NOT_FOUND
        moved = pb.MemberUpdateRequest(ID=learner, peerURLs=[somewhere()])
        assert not isinstance(change(member, "MemberUpdate", moved), Status)
        assert listed(member, learner).peerURLs == moved.peerURLs
        remove(member, learner)
        removal = pb.MemberRemoveRequest(ID=learner)
        assert change(member, "MemberRemove", removal) == errors.MEMBER_NOT_FOUND
        assert [each.ID for each in member.members()] == sorted(each.id for each in cluster)
    cluster.check_agreement()


def test_a_copy_of_a_running_members_directory_is_not_started(cluster: Cluster, make: str) -> None:
    if make != "kvorum":
        pytest.skip("an etcd starts, and the one it is a copy of dies of it")
    one, _, other = cluster
    own, copied = other.data, other.data.with_name("copied")
    other.kill()
    one.pause()  # so that no file is renamed meanwhile
    shutil.copytree(one.data, copied)
    one.resume()
    other.data = copied
    try:
        since = other.log_size()
        other.start()
        assert other.wait() == 1
        assert other.logged(f"the data directory is that of member {one.id:x}", since)
        assert other.logged("Start each member on its own directory", since)
    finally:
        other.data = own
        shutil.rmtree(copied)
    other.start()
    cluster.settle()
    assert one.is_running


def test_an_unhealthy_cluster_is_not_changed(cluster: Cluster) -> None:
    leader = cluster.leader()
    lost, kept = cluster.others(leader)
    for member in (leader, kept):
        remove(member, add(member, somewhere(), is_learner=True))
    lost.kill()
    for member, other in ((leader, kept), (kept, leader)):
        removal = pb.MemberRemoveRequest(ID=other.id)
        until(f"{member} notices", lambda member=member: is_refused(member))  # type: ignore[misc]
        assert change(member, "MemberRemove", removal) == errors.UNHEALTHY


def is_refused(member: Member) -> bool:
    """Return whether a learner may not be added; if it was, it is removed again."""
    request = pb.MemberAddRequest(peerURLs=[somewhere()], isLearner=True)
    answer = change(member, "MemberAdd", request)
    if answer == errors.UNHEALTHY:
        return True
    # This call has added one, or one before that nobody answered.
    there = (errors.PEER_URL_EXIST, errors.MEMBER_EXIST, errors.TOO_MANY_LEARNERS)
    assert not isinstance(answer, Status) or answer in there, answer
    for each in member.members():
        if each.isLearner:
            remove(member, each.ID)
    return False


@pytest.mark.parametrize("role", [pytest.param("follower", marks=pytest.mark.campaign), "leader"])
def test_a_removed_member_stops_itself_and_comes_back_as_another(
    cluster: Cluster, role: str
) -> None:
    gone = cluster.leader() if role == "leader" else cluster.followers()[0]
    through = cluster.others(gone)[0]
    with load(cluster, clerks=2) as work:
        work.await_progress()
        remove(through, gone.id)
        assert gone.wait() == 0, gone.log_tail()
        # Its data says that it was removed, and so do the others.
        gone.start()
        gone.wait()
        work.await_progress()
        shutil.rmtree(gone.data)
        gone.id = add(through, gone.peer_url)
        gone.start(state="existing")
        until("it serves", gone.status)
        work.await_progress()
    assert len(cluster[0].members()) == 3


def test_a_dead_member_is_replaced_by_a_learner(cluster: Cluster, make: str) -> None:
    dead = cluster.followers()[0]
    through = cluster.others(dead)[0]
    with load(cluster, clerks=2) as work:
        work.await_progress()
        dead.kill()
        work.await_progress()
        remove(through, dead.id)
        place = cluster.add()
        cluster.forget(dead)
        learner = add(through, place.peer_url, is_learner=True)
        place.start(state="existing")
        until("it serves", place.status)
        until("it has told its name", lambda: listed(through, learner).name)
        refused = place.ask("KV/Put", pb.PutRequest(key=b"x"))
        is_older = make == "etcd" and not is_target()
        code = Code.UNAVAILABLE if is_older else Code.FAILED_PRECONDITION
        assert refused == Status(code, errors.NOT_SUPPORTED_FOR_LEARNER.text)
        assert place.state().isLearner
        promote(through, learner)
        until("it knows", lambda: not place.state().isLearner)
        work.await_progress()
    assert not listed(place, learner).isLearner
    # It counts: with another one gone, the cluster still works.
    with load(cluster, clerks=2) as work:
        cluster.others(place)[0].kill()
        work.await_progress()


@pytest.mark.long
def test_five_members_lose_two(tmp_path_factory: pytest.TempPathFactory, make: str) -> None:
    directory = tmp_path_factory.mktemp("five")
    with running_cluster(directory, make, 5) as cluster, load(cluster, ordered=False) as work:
        work.await_progress()
        leader = cluster.leader()
        other = cluster.others(leader)[0]
        leader.kill()
        other.kill()
        work.await_progress()
        leader.start()
        other.start()
        work.await_progress()
