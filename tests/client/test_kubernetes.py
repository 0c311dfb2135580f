"""The calls that Kubernetes makes, with the results that its API server builds on."""

from collections.abc import Callable

import pytest

from kvorum.client import AsyncClient, CompactedError

Run = Callable[..., None]


def test_objects_are_read_with_the_revision_of_the_store(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.delete(prefix="/registry/")
        objects = client.kubernetes
        assert (await objects.get("/registry/pods/a")).kv is None
        created = await objects.optimistic_put("/registry/pods/a", "1", 0)
        assert created.succeeded
        await client.put("/elsewhere", "")
        found = await objects.get("/registry/pods/a")
        assert found.kv is not None
        assert (found.kv.value, found.kv.mod_revision) == (b"1", created.revision)
        assert found.revision > created.revision
        changed = await objects.optimistic_put("/registry/pods/a", "2", created.revision)
        before = await objects.get("/registry/pods/a", revision=created.revision)
        assert before.kv is not None and before.kv.value == b"1"
        await client.compact(changed.revision)
        with pytest.raises(CompactedError):
            await objects.get("/registry/pods/a", revision=created.revision)

    run(main, server)


def test_objects_are_listed_page_by_page(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.delete(prefix="/registry/")
        objects = client.kubernetes
        names = [f"/registry/pods/{number}" for number in range(7)]
        for each in names:
            await client.put(each, "x")
        await client.put("/registry/pods0", "behind the prefix")
        assert await objects.count("/registry/pods/") == 7
        page = await objects.list("/registry/pods/", limit=3)
        revision, got = page.revision, [each.key.decode() for each in page.kvs]
        assert (page.total, page.has_more) == (7, True)
        await client.put("/registry/pods/00", "not of this revision")
        while page.has_more:
            page = await objects.list(
                "/registry/pods/",
                limit=3,
                continue_from=page.kvs[-1].key + b"\0",
                revision=revision,
            )
            got += [each.key.decode() for each in page.kvs]
        assert got == names

    run(main, server)


def test_objects_are_changed_if_no_other_client_changed_them(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.delete(prefix="/registry/")
        objects = client.kubernetes
        granted = await client.lease(60)
        first = await objects.optimistic_put("/registry/a", "1", 0, lease=granted.id)
        found = (await objects.get("/registry/a")).kv
        assert found is not None and found.lease == granted.id
        refused = await objects.optimistic_put("/registry/a", "2", 0)
        assert (refused.succeeded, refused.current) == (False, None)
        refused = await objects.optimistic_put("/registry/a", "2", 0, get_on_failure=True)
        assert (refused.succeeded, refused.current) == (False, found)
        refused = await objects.optimistic_delete("/registry/a", 1, get_on_failure=True)
        assert (refused.succeeded, refused.current) == (False, found)
        assert (await objects.optimistic_delete("/registry/a", first.revision)).succeeded
        gone = await objects.optimistic_delete("/registry/a", 1, get_on_failure=True)
        assert (gone.succeeded, gone.current) == (False, None)

    run(main, server)
