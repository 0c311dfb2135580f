"""Recipes in a namespace: all their keys are there, and no others are seen."""

from concurrent.futures import ThreadPoolExecutor

from kvorum.client.sync.client import Client
from kvorum.client.sync.recipes.stm import Stm
from tests.client.recipes.queueing import queue_of


def test_recipes_keep_to_their_namespace(client: Client, name: str) -> None:
    inner = client.namespace(f"{name}/")
    with ThreadPoolExecutor(1) as pool:
        with inner.lock("lock", ttl=30) as lock, client.lock("lock", ttl=30):
            assert client.count(f"{name}/" + lock.key.decode()) == 1
            waiting = pool.submit(inner.lock("lock", ttl=30).acquire)
            queue_of(inner, "lock/", 2)
        waiting.result()
        taking = pool.submit(inner.queue("queue").get)
        client.queue("queue").put("outside")
        inner.queue("queue").put("inside")
        assert taking.result() == b"inside"
        assert client.queue("queue").get() == b"outside"

    def change(stm: Stm) -> None:
        stm.put("written", stm.get("none") or b"new")

    with inner.cache("", timeout=20) as cache:
        inner.transact(change)
        cache.wait_revision(inner.put("last", "x").revision)
        assert list(cache) == inner.read(prefix="").kvs
        found = cache.get("written")
        assert found is not None
        assert found.value == b"new"
