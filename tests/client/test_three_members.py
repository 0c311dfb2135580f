"""A client of three members: it learns of all of them, and asks the one that a call is for."""

from collections.abc import Callable, Iterator

import pytest

from kvorum.client import AsyncClient, MembersBehindError, NotLeaderError
from tests.cluster.members import MAKES, Cluster, Member, running_cluster, until

Run = Callable[..., None]


@pytest.fixture(scope="module", params=MAKES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), request.param) as made:
        made.settle()
        yield made


def test_one_member_tells_of_all_of_them(cluster: Cluster, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        assert len(client.endpoints) == 1
        assert {url.rpartition("/")[2] for url in await client.sync_endpoints()} == {
            member.address for member in cluster
        }
        statuses = [await client.maintenance.status(each) for each in client.endpoints]
        assert {each.member for each in statuses} == {each.id for each in cluster}
        assert len({each.leader for each in statuses}) == 1

    run(main, cluster[0].address)


def test_the_leader_is_found_and_moved(cluster: Cluster, run: Run) -> None:
    leader = cluster.settle()
    successor = cluster.others(leader)[0]

    async def main(client: AsyncClient) -> None:
        with pytest.raises(NotLeaderError):
            await client.maintenance.move_leader(successor.id, at=successor.address)
        await client.maintenance.move_leader(successor.id)
        assert (await client.maintenance.status(successor.address)).is_leader
        await client.put("after", "")

    run(main, [member.address for member in cluster])


def test_calls_go_on_without_the_leader(cluster: Cluster, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.sync_endpoints()
        first = await client.put("a", "1")
        leader = cluster.leader()
        leader.kill()
        found = await client.get("a", timeout=60)
        assert found is not None and found.mod_revision == first.revision
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
        await client.put("around", "1")
        # Calls stay where they were answered.
        current = client.shell.core.endpoints.pick(client.shell.core.now)
        assert current.address.text != alone.address
        async with await client.lease(60):
            assert await client.get("around") is not None

    # The first call goes to the one that is alone, as it is the only endpoint by then.
    run(main, alone.address)


def test_an_ordering_client_never_goes_back(cluster: Cluster, alone: Member, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        others = [each.address for each in cluster.others(alone)]
        ordered, namespace = client.ordering(), client.ordering().namespace("in/")
        await ordered.put("in/order", "old")
        shown = (await ordered.put("in/order", "new")).revision
        assert (await namespace.put("order", "new")).revision > shown
        client.set_endpoints(alone.address)
        # This is what it would have been shown.
        assert await client.get("in/order", serializable=True) is None
        for each in (ordered, namespace):
            with pytest.raises(MembersBehindError, match="no cluster members have a revision"):
                await each.get("in/order", serializable=True)
        client.set_endpoints([alone.address, *others])
        for each, key in ((ordered, "in/order"), (namespace, "order")):
            found = await each.get(key, serializable=True)
            assert found is not None and found.value == b"new"
        await client.delete("in/order")

    run(main, [each.address for each in cluster.others(alone)])
