"""Changes that are made only if a key is as expected."""

from collections.abc import Callable

from kvorum.client import AsyncClient

Run = Callable[..., None]


def test_only_what_is_expected_is_changed(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.delete("key")
        created = await client.put_if("key", "1", revision=0)
        assert created.succeeded and created.current is None
        again = await client.put_if("key", "2", revision=0)
        assert not again.succeeded and again.current == await client.get("key")
        changed = await client.put_if("key", "3", revision=created.revision)
        assert changed.succeeded
        late = await client.delete_if("key", revision=created.revision)
        assert not late.succeeded and late.current is not None and late.current.value == b"3"
        assert (await client.delete_if("key", revision=changed.revision)).succeeded
        gone = await client.put_if("key", "4", revision=changed.revision)
        assert (gone.succeeded, gone.current) == (False, None)
        inner = client.namespace("in/")
        made = await inner.put_if("key", "5", revision=0)
        refused = await inner.delete_if("key", revision=made.revision + 1)
        assert refused.current is not None and refused.current.key == b"key"

    run(main, server)
