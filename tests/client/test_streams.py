"""Answers of many messages: whole, as fast as they are taken, and given up in between."""

from collections.abc import Callable

import pytest

from kvorum.client import AsyncClient, CompactedError
from tests.etcd import is_target

Run = Callable[..., None]
VALUE = bytes(100_000)


def test_a_streamed_range_is_the_range(server: str, run: Run) -> None:
    if not is_target():
        pytest.skip("there is no RangeStream before 3.7")

    async def main(client: AsyncClient) -> None:
        for number in range(100):
            await client.put(f"many/{number:03}", VALUE)
        expected = [each async for each in client.range(prefix="many/")]
        # More than is kept and than a window holds: the server waits for who takes it.
        assert [each async for each in client.stream(prefix="many/")] == expected
        keys = [each.key async for each in client.stream(prefix="many/", keys_only=True, limit=3)]
        assert keys == [each.key for each in expected[:3]]
        async for each in client.stream(prefix="many/"):
            # Another call gets through although nobody takes the rest.
            assert await client.get(each.key) == each
            break
        revision = (await client.delete(prefix="many/")).revision
        assert [each async for each in client.stream(prefix="many/")] == []
        await client.compact(revision)
        with pytest.raises(CompactedError):
            [each async for each in client.stream(prefix="many/", revision=revision - 1)]

    run(main, server)
