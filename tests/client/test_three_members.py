"""A client of three members: it learns of all of them, and asks the one that a call is for."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from kvorum.client import AsyncClient, KvorumError, MembersBehindError, NotLeaderError
from tests.client.both import put_surely
from tests.cluster.members import MAKES, Cluster, Member, running_cluster
from tests.waiting import until

Run = Callable[..., None]
_numbers = count()


@pytest.fixture(scope="module", params=MAKES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), request.param) as made:
        made.settle()
        yield made


def test_one_member_tells_of_all_of_them(cluster: Cluster, run: Run) -> None:
    leaders: set[int] = set()

    async def main(client: AsyncClient) -> None:
        assert len(client.endpoints) == 1
        assert {url.rpartition("/")[2] for url in await client.sync_endpoints()} == {
            member.address for member in cluster
        }
        statuses = [await client.maintenance.status(each) for each in client.endpoints]
        assert {each.member for each in statuses} == {each.id for each in cluster}
        leaders.clear()
        leaders.update(each.leader for each in statuses)

    def agree() -> bool:
        run(main, cluster[0].address)
        return len(leaders) == 1

    # An election may come in between.
    until("all members name one leader", agree)


def test_the_leader_is_found_and_moved(cluster: Cluster, run: Run) -> None:
    def is_moved() -> bool:
        leader = cluster.settle()
        successor, term = cluster.others(leader)[0], leader.term()
        seen: list[object] = []

        async def main(client: AsyncClient) -> None:
            for at in (successor.address, None):
                try:
                    await client.maintenance.move_leader(successor.id, at=at)
                except KvorumError as error:
                    seen.append(type(error))
                else:
                    seen.append("moved")
            seen.append((await client.maintenance.status(successor.address)).is_leader)
            await put_surely(client, f"after/{next(_numbers)}", "")

        run(main, [member.address for member in cluster])
        if successor.term() != term + 1:
            return False
        assert seen == [NotLeaderError, "moved", True]
        return True

    until("the leader is moved, and no other election comes in between", is_moved)


def test_calls_go_on_without_the_leader(cluster: Cluster, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.sync_endpoints()
        key = f"before/{next(_numbers)}"
        revision = await put_surely(client, key, "1")
        leader = cluster.leader()
        leader.kill()
        found = await client.get(key)
        assert found is not None and found.mod_revision == revision
        leader.start()
        cluster.settle()

    run(main, cluster[0].address)


@pytest.fixture
def alone(cluster: Cluster) -> Iterator[Member]:
    """Cut a follower off; it has no leader then, and what it has gets old."""
    cluster.settle()
    follower = cluster.followers()[0]
    cluster.network.isolate(follower.node)
    until("the follower has no leader", lambda: not follower.status().leader)
    yield follower
    cluster.network.mend()
    cluster.settle()


def test_a_member_without_a_leader_is_passed_over(
    cluster: Cluster, alone: Member, run: Run
) -> None:
    """Also by writes, which it refuses before it looks at them."""

    async def main(client: AsyncClient) -> None:
        assert await client.get("nothing", serializable=True) is None
        client.set_endpoints([alone.address, *(each.address for each in cluster.others(alone))])
        await put_surely(client, f"around/{next(_numbers)}", "1")
        # Calls stay where they were answered.
        current = client.shell.core.endpoints.pick(client.shell.core.now)
        assert current.address.text != alone.address
        async with await client.lease(60):
            assert await client.count(prefix="around/")

    # The first call goes to the one that is alone, as it is the only endpoint by then.
    run(main, alone.address)


def test_an_ordering_client_never_goes_back(cluster: Cluster, alone: Member, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        others = [each.address for each in cluster.others(alone)]
        ordered, namespace = client.ordering(), client.ordering().namespace("in/")
        # A follower that is cut off may not have heard of the end of an earlier run.
        key = f"order{next(_numbers)}"
        await put_surely(ordered, f"in/{key}", "old")
        shown = await put_surely(ordered, f"in/{key}", "new")
        assert await put_surely(namespace, key, "newer") > shown
        client.set_endpoints(alone.address)
        # This is what it would have been shown.
        assert await client.get(f"in/{key}", serializable=True) is None
        for each in (ordered, namespace):
            with pytest.raises(MembersBehindError, match="no cluster members have a revision"):
                await each.get(f"in/{key}", serializable=True)
        client.set_endpoints([alone.address, *others])
        for each, name in ((ordered, f"in/{key}"), (namespace, key)):
            found = await each.get(name, serializable=True)
            assert found is not None and found.value == b"newer"

    run(main, [each.address for each in cluster.others(alone)])
