"""Elections."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from kvorum.client.errors import DeadlineError, ElectionNoLeaderError, ElectionNotLeaderError
from kvorum.client.operations import revoke_operation
from kvorum.client.sync.client import Client
from tests.client.recipes.conftest import Connect
from tests.client.recipes.queueing import queue_of


def test_the_first_leads_until_it_resigns(client: Client, connect: Connect, name: str) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool:
        mine, theirs = client.election(name, ttl=30), other.election(name, ttl=30)
        with pytest.raises(ElectionNoLeaderError, match="election: no leader"):
            mine.leader()
        with pytest.raises(ElectionNotLeaderError, match="election: not leader"):
            mine.proclaim("nobody")
        mine.campaign("one")
        found = theirs.leader()
        assert (found.key, found.value, found.create_revision) == (mine.key, b"one", mine.fencing)
        assert found.key == f"{name}/{found.lease:x}".encode()
        with pytest.raises(DeadlineError, match="was not won"):
            theirs.campaign("two", timeout=0.05)
        assert client.count(prefix=f"{name}/") == 1
        winning = pool.submit(theirs.campaign, "two")
        queue_of(client, f"{name}/", 2)
        mine.proclaim("uno")
        assert theirs.leader().value == b"uno"
        mine.resign()
        winning.result()
        assert mine.leader().value == b"two"
        assert theirs.fencing > found.create_revision
        theirs.resign()
    assert client.count(prefix=f"{name}/") == 0


def test_observers_see_every_leader_and_what_it_proclaims(
    client: Client, connect: Connect, name: str
) -> None:
    with connect() as other, ThreadPoolExecutor(1) as pool:
        leaders = iter(other.election(name).observe())
        first = pool.submit(next, leaders)
        election = client.election(name, ttl=30)
        election.campaign("one")
        assert first.result().value == b"one"
        election.proclaim("two")
        assert next(leaders).value == b"two"
        election.proclaim("three")
        election.resign()
        assert next(leaders).value == b"three"
        election.campaign("four")
        assert next(leaders).value == b"four"
        election.resign()


def test_a_leader_learns_that_its_session_is_lost(client: Client, name: str) -> None:
    election = client.election(name, ttl=5)
    election.campaign("one")
    client.run(revoke_operation(election.leader().lease))
    assert "lease" in str(election.wait_lost())
    with pytest.raises(ElectionNotLeaderError, match="election: not leader"):
        election.proclaim("two")
    election.resign()


def test_a_leader_is_resumed_by_its_session(client: Client, name: str) -> None:
    with client.session(30) as session:
        client.election(name, session=session).campaign("one")
        found = client.election(name).leader()
        with client.session(30) as stranger, pytest.raises(ValueError, match="the session of that"):
            client.election(name, session=stranger).resume(found)
    with client.session(30) as session:
        client.put(f"{name}/{session.id:x}", "one", lease=session.id)
        resumed = client.election(name, session=session)
        resumed.resume(resumed.leader())
        resumed.proclaim("two")
        assert resumed.leader().value == b"two"
        resumed.resign()
        assert client.count(prefix=f"{name}/") == 0
