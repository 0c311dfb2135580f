"""A mirror tells what there is and then every change, also of the time in between."""

import asyncio
from collections.abc import Callable
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.client import AsyncClient, Client, ClosedError, Step, delete, put
from tests.waiting import WAIT_SECONDS_MAX

Run = Callable[..., None]
NAMES = "abcd"
steps = st.one_of(
    st.builds(lambda name, value: put(f"from/{name}", value), st.sampled_from(NAMES), st.text()),
    st.builds(lambda name: delete(f"from/{name}"), st.sampled_from(NAMES)),
)


def distinct(found: list[Step]) -> list[Step]:
    """A transaction changes a key once."""
    keys = {each.request_put.key or each.request_delete_range.key: each for each in found}
    return list(keys.values())


batches = st.lists(st.lists(steps, min_size=1, max_size=3).map(distinct), max_size=6)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=batches, after=batches)
def test_the_copy_is_the_store(
    server: str, run: Run, before: list[list[Step]], after: list[list[Step]]
) -> None:
    async def main(client: AsyncClient) -> None:
        await client.delete(prefix="")
        for batch in before:
            await client.txn().then(*batch).commit()
        mirror = client.mirror("from/")
        copy = {kv.key: kv.value async for kv in mirror.base()}
        for batch in after:
            await client.txn().then(*batch).commit()
        last = (await client.put("from/last", "")).revision
        async for changes in mirror.updates():
            for event in changes.events:
                copy.pop(event.key, None)
                if event.is_put:
                    copy[event.key] = event.value
            if changes.revision >= last:
                break
        assert copy == {kv.key: kv.value async for kv in client.range(prefix="from/")}

    run(main, server)


KEYS = 300
"""More than two transactions take."""


def test_a_store_is_copied_by_a_thread(server: str) -> None:
    with (
        Client(server, timeout=WAIT_SECONDS_MAX) as source,
        Client(server, timeout=WAIT_SECONDS_MAX) as target,
    ):
        target.delete(prefix="")
        for number in range(KEYS):
            target.put(f"from/{number:03}", str(number))
        ended: list[BaseException] = []

        def copy() -> None:
            try:
                source.mirror("from/").copy_to(target, "to/")
            except ClosedError as error:
                ended.append(error)

        thread = Thread(target=copy)
        with target.watch(prefix="to/") as watch:
            thread.start()
            copied = {next(watch).key for _ in range(KEYS)}
            assert copied == {f"to/{number:03}".encode() for number in range(KEYS)}
            done = target.txn().then(put("from/new", "1"), delete("from/000")).commit()
            new, gone = next(watch), next(watch)
        assert done.succeeded and new.revision == gone.revision > done.revision
        assert {new.key, gone.key} == {b"to/new", b"to/000"}
        source.close()
        thread.join()
        assert len(ended) == 1


def test_a_store_is_copied_by_a_task(server: str) -> None:
    async def main() -> None:
        async with AsyncClient(server, timeout=WAIT_SECONDS_MAX) as client:
            await client.delete(prefix="")
            await client.put("from/a", "1")
            async with client.watch(prefix="to/") as watch:
                task = asyncio.create_task(client.mirror("from/").copy_to(client, "to/"))
                assert (await anext(watch)).key == b"to/a"
                await client.put("from/a", "2")
                assert (await anext(watch)).value == b"2"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_updates_follow_a_base(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        with pytest.raises(ValueError, match="before its base was read"):
            [changes async for changes in client.mirror("a").updates()]

    run(main, server)
