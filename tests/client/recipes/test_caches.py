"""Caches: they show what the store has, also after gaps in its history."""

import random

import pytest

from kvorum.client import reflecting
from kvorum.client.errors import ClosedError, DeadlineError
from kvorum.client.keys import key_range
from kvorum.client.operations import watch_request
from kvorum.client.reflecting import Reflector
from kvorum.client.sync.client import Client


def test_a_cache_follows_its_prefix(client: Client, name: str) -> None:
    client.put(f"{name}/b", "1")
    with client.cache(f"{name}/", timeout=20) as cache:
        found = cache.get(f"{name}/b")
        assert found is not None
        assert found.value == b"1"
        assert cache.get(f"{name}/a") is None
        client.put(f"{name}/a", "2")
        revision = client.delete(f"{name}/b").revision
        cache.wait_revision(revision)
        assert [(each.key, each.value) for each in cache] == [(f"{name}/a".encode(), b"2")]
        assert len(cache) == 1
        # Of other keys nothing is seen, but how far the store is.
        cache.wait_revision(client.put("elsewhere", "").revision)
        changed = client.put(f"{name}/a", "3").revision
        assert cache.wait_change(cache.revision - 1) > 0
        cache.wait_revision(changed)
        with pytest.raises(ValueError, match="keys that begin with"):
            cache.get("elsewhere")
        with pytest.raises(DeadlineError, match="was not at revision"):
            cache.wait_revision(changed + 1000, timeout=0.05)
        assert cache.readings == 1
    with pytest.raises(ClosedError, match="the cache is closed"):
        cache.get(f"{name}/a")


def test_random_changes_arrive_in_full(client: Client, name: str) -> None:
    chance = random.Random(7)
    for number in range(30):
        client.put(f"{name}/{number}", "before")
    with client.cache(f"{name}/", timeout=20) as cache:
        for _ in range(60):
            key = f"{name}/{chance.randrange(40)}"
            if chance.random() < 0.4:
                client.delete(key)
            else:
                client.put(key, str(chance.random()))
        everything = client.read(prefix=f"{name}/")
        cache.wait_revision(everything.revision)
        assert list(cache) == everything.kvs


def test_after_a_compaction_everything_is_read_anew(
    server: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflecting, "PAGE_KEYS", 3)
    with Client(server, timeout=20) as client, Client(server, timeout=20) as other:
        for number in range(8):
            other.put(f"{name}/{number}", "old")
        with client.cache(f"{name}/", timeout=20) as cache:
            watching, reflector = client.shell.watching, cache._reflector
            with client.shell.turn():
                # As when the watch was away for as long as a compaction took.
                assert reflector._watch is not None
                watching.cancel(reflector._watch)
                began = reflector._watch.revision
                reflector._watch = None
            other.delete(f"{name}/3")
            revision = other.put(f"{name}/9", "new").revision
            other.compact(revision)
            with client.shell.turn():
                request = watch_request(
                    key_range(prefix=f"{name}/"),
                    began,
                    previous=False,
                    progress=True,
                    puts=True,
                    deletes=True,
                )
                reflector._watch = watching.begin(request, reflector._take_changes)
            cache.wait_revision(revision, timeout=20)
            assert cache.readings == 2
            assert list(cache) == other.read(prefix=f"{name}/").kvs


def test_what_has_ended_stays_as_it_is(server: str) -> None:
    with Client(server, timeout=20) as client:
        ended: list[int] = []
        shell = client.shell
        reflector = Reflector(
            shell.core, shell.watching, key_range(prefix="x"), 0, lambda: ended.append(1)
        )
        with shell.turn():
            reflector.begin()
            reflector.end(ClosedError("over"))
        client.get("x")
        assert ended == [1]
        assert reflector.readings == 0
