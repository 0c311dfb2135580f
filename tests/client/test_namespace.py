"""A client of a namespace sees its keys alone, without their prefix."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.client import AsyncClient, KeyEmptyError, create_revision, delete, get, put, value
from kvorum.client.keys import ALL, KeyRange, key_range
from kvorum.client.namespacing import prefix_key, prefix_range_end

Run = Callable[..., None]
# Few bytes, among them those at which prefixes end, so that keys meet ranges.
keys = st.lists(st.sampled_from(b"\x00\x01ab\xfe\xff"), min_size=1, max_size=4).map(bytes)


def ranges() -> st.SearchStrategy[KeyRange]:
    return st.one_of(
        keys.map(key_range),
        st.one_of(keys, st.just(b"")).map(lambda prefix: key_range(prefix=prefix)),
        keys.map(lambda first: key_range(from_key=first)),
        st.tuples(keys, keys).map(lambda both: key_range(both[0], end=both[1])),
    )


def holds(found: KeyRange, key: bytes) -> bool:
    if not found.end:
        return key == found.key
    return key >= found.key and (found.end == ALL or key < found.end)


@given(keys, ranges(), keys)
def test_a_range_holds_the_same_keys_inside(prefix: bytes, found: KeyRange, key: bytes) -> None:
    inside = KeyRange(prefix_key(prefix, found.key), prefix_range_end(prefix, found.end))
    assert holds(inside, prefix + key) == holds(found, key)
    # And none of others.
    assert not holds(inside, key) or key.startswith(prefix)


def test_a_namespace_is_a_client_of_its_own_keys(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        await client.delete(prefix="")
        for key in ("a", "ns", "ns0", "nt"):
            await client.put(key, "outside")
        inner = client.namespace("n").namespace(b"s/")
        async with inner.watch(prefix="", previous=True) as watch:
            lease = await inner.lease(60)
            await inner.put("a", "1", lease=lease.id)
            await client.put("ns0", "outside", lease=lease.id)
            assert (await lease.remaining(keys=True)).keys == [b"a"]
            again = await inner.put("a", "2", previous=True)
            assert again.previous is not None and again.previous.key == b"a"
            first, second = await anext(watch), await anext(watch)
            assert (first.key, first.value, first.previous) == (b"a", b"1", None)
            assert second.previous is not None and second.previous.key == b"a"
        await inner.put("b", "3")
        assert [kv.key async for kv in inner.range(prefix="", page=1)] == [b"a", b"b"]
        assert [kv.key async for kv in inner.range(from_key="b")] == [b"b"]
        stored = await client.get("ns/b")
        assert stored is not None and stored.value == b"3"
        found = await inner.get("b")
        assert found == stored._replace(key=b"b")
        txn = inner.txn().when(value("a") == "2", create_revision("c") == 0)
        done = await txn.then(put("c", "4"), get(prefix=""), delete("a", previous=True)).commit()
        assert done.succeeded
        _, read, deleted = done.responses
        assert [kv.key for kv in read.kvs] == [b"a", b"b", b"c"]  # type: ignore[union-attr]
        assert [kv.key for kv in deleted.previous] == [b"a"]  # type: ignore[union-attr]
        with pytest.raises(KeyEmptyError):
            await inner.put("", "nothing")
        assert (await inner.delete(prefix="")).deleted == 2
        assert await client.count(prefix="") == 4
        await inner.close()
        assert await client.get("a") is not None
        with pytest.raises(ValueError, match="a prefix that is not empty"):
            client.namespace("")

    run(main, server)
