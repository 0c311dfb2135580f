"""A client of three members: it learns of all of them, and asks the one that a call is for."""

from collections.abc import Callable, Iterator

import pytest

from kvorum.client import AsyncClient, NotLeaderError
from tests.cluster.members import MAKES, Cluster, running_cluster

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
