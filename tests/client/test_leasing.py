"""Leasing clients: what they own they read without a call, and it is always what the store has."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.client import (
    AsyncClient,
    Client,
    DeadlineError,
    create_revision,
    get,
    operations,
    put,
    value,
)
from kvorum.client.keys import ALL, KeyRange
from kvorum.client.owned_keys import REVOKE, OwnershipNames
from kvorum.client.transactions import delete, lease, mod_revision, version
from tests.client.both import ask_until
from tests.waiting import WAIT_SECONDS_MAX

Run = Callable[..., None]

_numbers = count()


def fresh() -> str:
    """Return a prefix that no other test uses."""
    return f"t{next(_numbers)}/"


def test_an_owned_key_is_read_without_a_call(server: str, run: Run) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        await client.put(f"{name}a", "1")
        async with client.leasing(f"{name}own/") as leased:
            assert (await leased.get(f"{name}a")).value == b"1"  # type: ignore[union-attr]
            # Whoever writes past the rules is not seen: nobody was asked.
            await client.put(f"{name}a", "2")
            assert (await leased.get(f"{name}a")).value == b"1"  # type: ignore[union-attr]
            # What has a revision or is a range is the server's to answer.
            assert (await leased.read(prefix=f"{name}a")).kvs[0].value == b"2"
            # Its own writes it sees.
            await leased.put(f"{name}a", "3")
            assert (await leased.get(f"{name}a")).value == b"3"  # type: ignore[union-attr]
            owner = await client.get(f"{name}own/{name}a")
            assert owner is not None
            assert owner.lease in await client.leases()
        assert await client.get(f"{name}own/{name}a") is None
        assert (await client.get(f"{name}a")).value == b"3"  # type: ignore[union-attr]

    run(page, server)


def test_a_key_is_given_up_before_another_writes_it(server: str, run: Run) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        own = f"{name}own/"
        async with client.leasing(own) as one, client.leasing(own) as other:
            assert await one.get(f"{name}a") is None
            await other.put(f"{name}a", "theirs")
            assert (await one.get(f"{name}a")).value == b"theirs"  # type: ignore[union-attr]
            assert (await other.get(f"{name}a")).value == b"theirs"  # type: ignore[union-attr]
            # The key is free, or owned by the one that read it first after that.
            assert (await other.delete(prefix=name)).deleted >= 1
            assert await one.get(f"{name}a") is None

    run(page, server)


def test_an_owner_that_does_not_answer_holds_a_writer_up_no_longer_than_it_waits(
    server: str, run: Run
) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        held = await client.lease(60)
        await client.put(f"{name}own/{name}a", "", lease=held.id)
        async with client.leasing(f"{name}own/") as leased:
            with pytest.raises(DeadlineError, match="was not given up by its owner"):
                await leased.put(f"{name}a", "1", timeout=0.3)
            owner = await client.get(f"{name}own/{name}a")
            assert owner is not None
            assert (owner.value, owner.lease) == (REVOKE, held.id)
            assert await client.get(f"{name}a") is None
            await held.revoke()
            await leased.put(f"{name}a", "1")
            assert (await client.get(f"{name}a")).value == b"1"  # type: ignore[union-attr]

    run(page, server)


def test_a_lost_session_ends_what_is_owned(server: str, run: Run) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        async with client.leasing(f"{name}own/", ttl=60) as leased:
            assert await leased.get(f"{name}a") is None
            owner = await client.get(f"{name}own/{name}a")
            assert owner is not None
            async with client.watch(f"{name}own/{name}a", revision=owner.mod_revision + 1) as gone:
                await client.run(operations.revoke_operation(owner.lease))
                await anext(gone)
            await client.put(f"{name}a", "by one without rules")

            async def is_seen() -> bool:
                found = await leased.get(f"{name}a")
                assert found is None or found.value == b"by one without rules"
                return found is not None

            await ask_until("the leasing client asks again", is_seen)

    run(page, server)


def test_a_key_with_a_lease_is_never_owned(server: str, run: Run) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        granted = await client.lease(60)
        async with client.leasing(f"{name}own/") as leased:
            assert await leased.get(f"{name}a") is None
            await leased.put(f"{name}a", "1", lease=granted.id)
            assert (await leased.get(f"{name}a")).value == b"1"  # type: ignore[union-attr]
            await granted.revoke()
            assert await leased.get(f"{name}a") is None

    run(page, server)


def test_a_namespace_keeps_its_ownership_keys_inside(server: str, run: Run) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        async with client.namespace(name).leasing("own/") as leased:
            await leased.put("a", "1")
            assert (await leased.get("a")).key == b"a"  # type: ignore[union-attr]
            assert await client.get(f"{name}own/a") is not None
            async with client.namespace(name).leasing("own/") as other:
                assert (await other.delete(prefix="")).deleted >= 1
            assert await leased.get("a") is None

    run(page, server)


@given(st.binary(max_size=3), st.binary(min_size=1, max_size=3), st.data())
def test_ownership_keys_of_a_range_are_those_of_its_keys(
    namespace: bytes, prefix: bytes, data: st.DataObject
) -> None:
    names = OwnershipNames(namespace, prefix)
    small = st.binary(max_size=2)
    start, end, key = (namespace + data.draw(small) for _ in range(3))
    is_in = start <= key < end
    found = names.ownership_range(KeyRange(start, end))
    assert names.owned_key(names.ownership_key(key)) == key
    if end > start and end != ALL:
        assert (found.key <= names.ownership_key(key) < found.end) == is_in


def test_ownership_keys_of_all_keys_are_all_that_have_the_prefix() -> None:
    assert OwnershipNames(b"", b"own/").ownership_range(KeyRange(b"b", b"\0")) == KeyRange(
        b"own/b", b"own0"
    )
    assert OwnershipNames(b"n/", b"own/").ownership_range(KeyRange(b"n/b", b"n0")) == KeyRange(
        b"n/own/b", b"n/own0"
    )


# Whatever two leasing clients do one after the other, both read what the store has.

KEYS = ["a", "b", "c"]
key = st.sampled_from(KEYS)
who = st.integers(0, 1)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("get"), who, key),
        st.tuples(st.just("read"), who, key, st.integers(0, 9), st.booleans(), st.booleans()),
        st.tuples(st.just("put"), who, key, st.booleans()),
        st.tuples(st.just("delete"), who, key),
        st.tuples(st.just("delete all"), who),
        st.tuples(st.just("move"), who, key, key),
        st.tuples(st.just("look"), who, key, key, st.sampled_from("vcmal"), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=25,
)


async def act(action: Any, leased: AsyncClient, plain: AsyncClient, name: str, number: int) -> None:
    kind, _, *given_ = action
    keys = [f"{name}{each}" for each in given_ if each in KEYS]
    if kind == "get":
        assert await leased.get(keys[0]) == await plain.get(keys[0])
    elif kind == "read":
        base = (await plain.read(keys[0])).revision - 5
        options = {
            "mod_revisions": (max(0, base + given_[1]), 0),
            "keys_only": given_[2],
            "count_only": given_[3],
        }
        found, expected = (
            await leased.read(keys[0], **options),
            await plain.read(keys[0], **options),
        )
        assert found[:3] == expected[:3]
    elif kind == "put":
        result = await leased.put(keys[0], str(number), previous=given_[1])
        found_kv = await plain.get(keys[0])
        assert found_kv is not None
        assert (found_kv.value, found_kv.mod_revision) == (str(number).encode(), result.revision)
    elif kind == "delete":
        await leased.delete(keys[0])
        assert await plain.get(keys[0]) is None
    elif kind == "delete all":
        await leased.delete(prefix=name)
        assert await plain.count(prefix=name) == 0
    elif kind == "move" and keys[0] != keys[1]:
        moved = leased.txn().when(version(keys[0]) > 0).then(delete(keys[0]), put(keys[1], "moved"))
        await moved.otherwise(put(keys[0], "new"), get(keys[1])).commit()
    elif kind == "look":
        facet = {
            "v": version(keys[0]) > given_[3],
            "c": create_revision(keys[0]) == 0,
            "m": mod_revision(keys[0]) != 0,
            "a": value(keys[0]) < str(given_[3] * 5),
            "l": lease(keys[0]) == 0,
        }[given_[2]]
        both = [
            await each.txn().when(facet).then(get(keys[1])).otherwise(get(keys[0])).commit()
            for each in (leased, plain)
        ]
        assert both[0].succeeded == both[1].succeeded
        assert [each[:3] for each in both[0].responses] == [each[:3] for each in both[1].responses]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions)
def test_leasing_clients_read_what_the_store_has(server: str, run: Run, todo: list[Any]) -> None:
    name = fresh()

    async def page(client: AsyncClient) -> None:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(client.leasing(f"{name[:-1]}-own/"))
                for _ in range(2)
            ]
            for number, action in enumerate(todo):
                await act(action, clients[action[1]], client, name, number)
                for each in clients:
                    for short in KEYS:
                        if number % 3 == 0:
                            assert await each.get(name + short) == await client.get(name + short)

    run(page, server)


def test_a_read_after_an_answered_write_sees_it(server: str) -> None:
    """One client writes rising numbers, others read: none sees one below what was answered."""
    name = fresh()
    written = [0]
    problems: list[str] = []

    def read(reader: Client) -> None:
        while written[0] < 30 and not problems:
            least = written[0]
            found = reader.get(f"{name}a")
            if int(found.value if found else b"0") < least:
                problems.append(f"{found} was read after {least} had been written")

    with (
        Client(server, timeout=WAIT_SECONDS_MAX) as first,
        Client(server, timeout=WAIT_SECONDS_MAX) as second,
    ):
        readers = [first.leasing(f"{name}own/"), second.leasing(f"{name}own/")]
        threads = [threading.Thread(target=read, args=(each,)) for each in readers * 2]
        for each in threads:
            each.start()
        with second.leasing(f"{name}own/") as writer:
            for number in range(1, 31):
                writer.put(f"{name}a", str(number))
                written[0] = number
        for each in threads:
            each.join()
        for leased in readers:
            leased.close()
    assert not problems


def test_a_leasing_client_that_is_closed_says_so(server: str) -> None:
    async def page() -> None:
        async with AsyncClient(server, timeout=WAIT_SECONDS_MAX) as client:
            leased = client.leasing("own/")
            await leased.close()
            with pytest.raises(Exception, match="the leasing client is closed"):
                await leased.get("a")
            assert await client.get("nothing") is None

    asyncio.run(page())
