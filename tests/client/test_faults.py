"""The client while real servers are killed, paused, restarted and restored, ours and etcd's."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import (
    DeadlineError,
    OutcomeUnknownError,
    RevisionWentBackError,
    WatchCompactedError,
)
from kvorum.client.rpcs import Rpc
from kvorum.client.sync.client import Client
from kvorum.client.threads import KEEPALIVE
from kvorum.client.values import Event
from tests.client import both
from tests.cluster.members import MAKES, Cluster, Member, running_cluster
from tests.etcd import chosen
from tests.waiting import until

TIMEOUT_SECONDS = 60.0
"""Long: a busy machine may take its time, and nothing here is about speed."""


@pytest.fixture(scope="module", params=MAKES)
def three(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if request.param == "etcd":
        chosen()
    with running_cluster(tmp_path_factory.mktemp("three"), request.param, 3) as cluster:
        yield cluster


@pytest.fixture(params=MAKES)
def one(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if request.param == "etcd":
        chosen()
    with running_cluster(tmp_path_factory.mktemp("one"), request.param, 1) as cluster:
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client notice sooner that a server is silent."""
    monkeypatch.setattr(KEEPALIVE, "ping_seconds", 0.3)
    monkeypatch.setattr(KEEPALIVE, "pong_seconds_max", 0.7)


def client_of(cluster: Cluster, timeout: float = TIMEOUT_SECONDS) -> Client:
    return Client([member.address for member in cluster], timeout=timeout)


def used_by(cluster: Cluster, client: Client) -> Member:
    """Return the member that a client's calls go to."""
    core = client.shell.core
    address = core.endpoints.pick(core.now).address.text
    (found,) = (member for member in cluster if member.address == address)
    return found


def put_surely(client: Client, key: str, value: str) -> int:
    """Put a key, and return its revision.

    A put of unknown outcome is looked for, and made again if it is not there.
    """

    def revision() -> int | None:
        try:
            return client.put(key, value).revision
        except OutcomeUnknownError:
            found = client.get(key)
            is_there = found is not None and found.value == value.encode()
            return found.mod_revision if is_there and found is not None else None

    return until(f"{key!r} is put", revision)


def history(cluster: Cluster, prefix: str, first: int, count: int) -> list[Event]:
    """Return events as a client gets them that nothing happens to."""
    with client_of(cluster) as client, client.watch(prefix=prefix, revision=first) as watch:
        return [next(watch) for _ in range(count)]


def is_event(event: Event, key: str) -> bool:
    return event.key == key.encode()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["kill", "pause", "lead"])
def test_calls_and_watches_go_on_at_another_member(three: Cluster, fault: str) -> None:
    three.settle()
    prefix = f"{fault}/"
    with client_of(three) as client, client.lease(600) as lease:
        first = put_surely(client, f"{prefix}0", "")
        got: list[Event] = []
        watch = client.watch(prefix=prefix, revision=first)
        got.append(next(watch))
        member = used_by(three, client)
        if fault == "kill":
            member.kill()
        elif fault == "pause":
            member.pause()
        else:
            three.lead(three.followers()[0])
        for number in range(1, 6):
            put_surely(client, f"{prefix}{number}", "")
        while not is_event(got[-1], f"{prefix}5"):
            got.append(next(watch))
        watch.close()
        assert lease.lost is None
        if fault != "lead":
            assert used_by(three, client) is not member
    three.settle()
    assert got == history(three, prefix, first, len(got))


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_leasing_clients_see_what_was_answered(three: Cluster) -> None:
    """One writes rising numbers, two read, while members are killed and the leader changes."""
    three.settle()
    answered, is_over, problems = [0], threading.Event(), []

    def read(reader: Client) -> None:
        try:
            while not is_over.is_set():
                least = answered[0]
                found = reader.get("leased/a")
                assert int(found.value if found else b"0") >= least
        except BaseException as error:
            problems.append(error)

    with client_of(three) as first, client_of(three) as second:
        readers = [each.leasing("leased/own/", ttl=5) for each in (first, second)]
        threads = [threading.Thread(target=read, args=(each,)) for each in readers]
        for thread in threads:
            thread.start()
        try:
            with second.leasing("leased/own/", ttl=5) as writer:
                for number in range(1, 31):
                    if number % 10 == 5:
                        used_by(three, first).kill()
                    elif number % 10 == 0:
                        for member in three:
                            if not member.is_running:
                                member.start()
                        three.settle()
                    with suppress(OutcomeUnknownError):
                        writer.put("leased/a", str(number))
                        answered[0] = number
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        for each in readers:
            each.close()
    assert not problems
    assert answered[0] > 5


@pytest.mark.usefixtures("impatient")
def test_an_asyncio_client_goes_on_at_another_member(three: Cluster) -> None:
    three.settle()

    async def page() -> None:
        addresses = [member.address for member in three]
        async with AsyncClient(addresses, timeout=TIMEOUT_SECONDS) as client:
            first = await both.put_surely(client, "loop/0", "")
            watch = client.watch(prefix="loop/", revision=first)
            got = [await anext(watch)]
            core = client.shell.core
            used = core.endpoints.pick(core.now).address.text
            next(each for each in three if each.address == used).pause()
            # Reads are made again elsewhere, however many are under way.
            found = await asyncio.gather(*(client.get("loop/0") for _ in range(50)))
            assert all(each is not None for each in found)
            await both.put_surely(client, "loop/1", "")
            got.append(await anext(watch))
            assert [event.key for event in got] == [b"loop/0", b"loop/1"]

    asyncio.run(page())
    three.settle()


def test_a_watch_and_calls_survive_a_restart(one: Cluster) -> None:
    (member,) = one
    with client_of(one) as client:
        first = client.put("a", "1").revision
        with client.watch("a", revision=first) as watch:
            assert next(watch).value == b"1"
            member.kill()
            member.start()
            put_surely(client, "a", "2")
            assert next(watch).value == b"2"


def test_a_store_that_went_back_is_reported_and_so_is_compaction(one: Cluster) -> None:
    (member,) = one
    with client_of(one) as client:
        for number in range(10):
            revision = client.put("a", str(number)).revision
        client.compact(revision - 2)
        with (
            client.watch("a", revision=1) as watch,
            pytest.raises(WatchCompactedError) as compacted,
        ):
            next(watch)
        assert (compacted.value.revision, compacted.value.compacted) == (1, revision - 2)
        with client.watch("a", revision=revision) as watch:
            assert next(watch).value == b"9"
            member.kill()
            shutil.rmtree(member.data)
            member.start()
            with pytest.raises(RevisionWentBackError) as went_back:
                next(watch)
        assert went_back.value.seen == revision
        assert went_back.value.found < revision


def ask(client: Client, rpc: Rpc, request: bytes) -> None:
    client.shell.call(rpc, request, TIMEOUT_SECONDS)


@pytest.mark.long
def test_tokens_that_are_gone_are_fetched_anew_and_users_may_come_later(one: Cluster) -> None:
    (member,) = one
    with (
        client_of(one) as admin,
        Client(member.address, user="root", password="r", timeout=TIMEOUT_SECONDS) as client,
    ):
        first = client.put("a", "before there are users").revision
        ask(
            admin,
            rpcs.USER_ADD,
            pb.AuthUserAddRequest(name="root", password="r").SerializeToString(),
        )
        role = pb.AuthUserGrantRoleRequest(user="root", role="root").SerializeToString()
        ask(admin, rpcs.ROLE_ADD, pb.AuthRoleAddRequest(name="root").SerializeToString())
        ask(admin, rpcs.USER_GRANT_ROLE, role)
        with client.watch("a", revision=first) as watch:
            assert next(watch).key == b"a"
            ask(admin, rpcs.AUTH_ENABLE, pb.AuthEnableRequest().SerializeToString())
            client.put("a", "with a token")
            assert next(watch).value == b"with a token"
            # Tokens are kept in memory: none of them is known any more.
            member.kill()
            member.start()
            put_surely(client, "a", "with another")
            assert next(watch).value == b"with another"


def test_an_interrupt_in_a_call_leaves_the_client_usable(one: Cluster) -> None:
    (member,) = one
    with client_of(one) as client:
        client.put("a", "1")
        member.pause()
        shell, core = client.shell, client.shell.core

        def interrupt() -> None:
            # Not only begun: an interrupt between its beginning and the waiting is not of interest.
            until("the call is awaited", lambda: core._calls and shell._reader)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.get("a")
        thread.join()
        assert not core._calls
        member.resume()
        found = client.get("a")
        assert found is not None
        assert found.value == b"1"


def test_a_silent_server_is_noticed_by_the_deadline(one: Cluster) -> None:
    (member,) = one
    with client_of(one) as client:
        client.put("a", "1")
        member.pause()
        # First, as it is sent for sure: there is a connection.
        with pytest.raises(OutcomeUnknownError):
            client.put("a", "2", timeout=0.2)
        with pytest.raises(DeadlineError):
            client.get("a", timeout=0.2)
        member.resume()
        assert client.get("a") is not None


FORKS = """
import os, sys
from kvorum.client.errors import ForkedError
from kvorum.client.sync.client import Client
with Client(sys.argv[1], timeout=60) as client:
    client.put("fork", "parent")
    watch = client.watch("fork")
    child = os.fork()
    if child == 0:
        try:
            client.get("fork")
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert client.get("fork").value == b"parent"
"""


def test_a_forked_child_gets_an_error_and_its_parent_goes_on(one: Cluster) -> None:
    subprocess.run([sys.executable, "-c", FORKS, one[0].address], check=True, timeout=120)


def test_sixteen_threads_share_a_client(one: Cluster) -> None:
    problems: list[BaseException] = []

    def work(client: Client, name: int) -> None:
        try:
            for number in range(25):
                client.put(f"thread/{name}", str(number))
                found = client.get(f"thread/{name}")
                assert found is not None
                assert found.value == str(number).encode()
        except BaseException as error:
            problems.append(error)

    with client_of(one) as client, client.watch(prefix="thread/") as watch:
        # From now on means from when it has begun.
        client.put("other", "")
        threads = [threading.Thread(target=work, args=(client, name)) for name in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        with client.watch(prefix="thread/", revision=1) as all_of_it:
            events = [next(all_of_it) for _ in range(16 * 25)]
        assert len({event.kv.mod_revision for event in events}) == 16 * 25
        assert next(watch).key.startswith(b"thread/")


# What is closed is gone.


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def open_and_close(address: str, clients: int, watches: int) -> None:
    for _ in range(clients):
        with Client(address, timeout=TIMEOUT_SECONDS) as client:
            client.get("a")
            opened = [client.watch("a", revision=1) for _ in range(watches)]
            for watch in opened:
                watch.close()


async def open_and_close_on_a_loop(address: str, clients: int, watches: int) -> None:
    for _ in range(clients):
        async with AsyncClient(address, timeout=TIMEOUT_SECONDS) as client:
            await client.get("a")
            opened = [client.watch("a", revision=1) for _ in range(watches)]
            for watch in opened:
                await watch.close()


@pytest.mark.parametrize(
    ("clients", "watches"),
    [(40, 20), pytest.param(10_000, 10, marks=pytest.mark.campaign)],
)
def test_clients_and_watches_leave_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory, clients: int, watches: int
) -> None:
    with running_cluster(tmp_path_factory.mktemp("leaks"), "kvorum", 1) as cluster:
        address = cluster[0].address
        open_and_close(address, 1, 1)
        asyncio.run(open_and_close_on_a_loop(address, 1, 1))
        threads, files = threading.active_count(), descriptors()
        open_and_close(address, clients, watches)
        asyncio.run(open_and_close_on_a_loop(address, clients, watches))
        until("all threads have ended", lambda: threading.active_count() <= threads)
        until("all descriptors are closed", lambda: descriptors() <= files)


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.campaign)])
def test_many_watches_of_one_client_leave_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    with running_cluster(tmp_path_factory.mktemp("watches"), "kvorum", 1) as cluster:
        threads, files = threading.active_count(), descriptors()
        with client_of(cluster) as client:
            first = client.put("a").revision + 1
            watches = [client.watch(f"watched/{number}", revision=first) for number in range(count)]
            client.put(f"watched/{count - 1}", "last")
            assert next(watches[-1]).value == b"last"
            for watch in watches:
                watch.close()
            with client.watch(f"watched/{count - 1}", revision=first) as watch:
                assert next(watch).value == b"last"
            assert not client.shell.watching._watches
        until("all threads have ended", lambda: threading.active_count() <= threads)
        until("all descriptors are closed", lambda: descriptors() <= files)


def test_a_client_that_is_closed_while_it_connects_leaves_nothing_behind() -> None:
    threads, files = threading.active_count(), descriptors()
    for _ in range(20):
        client = Client("127.0.0.1:1", timeout=TIMEOUT_SECONDS)
        watch = client.watch("a", revision=1)
        client.close()
        assert list(watch) == []
    until("all threads have ended", lambda: threading.active_count() <= threads)
    until("all descriptors are closed", lambda: descriptors() <= files)
