"""Members, maintenance, users and roles through both clients, on our server and on etcd."""

import subprocess
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from kvorum.client import (
    Alarm,
    AsyncClient,
    LoginFailedError,
    MemberNotFoundError,
    NoSpaceError,
    NotALearnerError,
    Permission,
    PermissionDeniedError,
    RoleNotFoundError,
    SnapshotError,
    UnavailableError,
)
from kvorum.client.saving import Saving
from tests.client.embedded import embedded
from tests.etcd import binary, is_target
from tests.servers import RUNNING, member_behind, running_server
from tests.state.auth.servers import QUICK

Run = Callable[..., None]
PORTS = count(3)


@pytest.fixture(scope="module", params=[*RUNNING, "embedded"])
def lone_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server for users, whose passwords are hashed quickly."""
    if request.param == "embedded":
        with embedded(bcrypt_cost=4) as address:
            yield address
        return
    with running_server(request.param, tmp_path_factory.mktemp("server"), QUICK) as address:
        yield address


def test_members_are_listed_added_updated_and_removed(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        (first,) = await client.members.list()
        assert first.is_started and not first.is_learner
        assert first.client_urls == [f"http://{member_behind(server)}"]
        # An id is made from URLs and the second; one that was removed does not come back.
        added = await client.members.add(f"http://127.0.0.1:{next(PORTS)}", learner=True)
        assert added.is_learner and not added.is_started
        other = f"http://127.0.0.1:{next(PORTS)}"
        changed = await client.members.update(added.id, [other])
        assert {each.id: each.peer_urls for each in changed}[added.id] == [other]
        with pytest.raises(NotALearnerError):
            await client.members.promote(first.id)
        assert await client.members.remove(added.id) == [first]
        with pytest.raises(MemberNotFoundError):
            await client.members.remove(added.id)
        assert await client.members.list(linearizable=False) == [first]

    run(main, server)


def test_a_member_tells_its_status_and_hashes(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        revision = (await client.put("a", "b")).revision
        status = await client.maintenance.status(f"http://{server}")
        (member,) = await client.members.list()
        assert status.is_leader and status.member == member.id and status.revision == revision
        assert status.applied_index <= status.raft_index
        found = await client.maintenance.hash_kv(server, revision=revision)
        assert found.revision == revision
        assert found == await client.maintenance.hash_kv()
        await client.maintenance.defragment(server)
        assert isinstance(await client.maintenance.hash(), int)
        await client.maintenance.move_leader(member.id)

    run(main, server)


def test_alarms_are_raised_and_cleared(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        member = (await client.maintenance.status()).member
        await client.maintenance.raise_alarm("nospace", member)
        assert await client.maintenance.alarms() == [Alarm(member, "nospace")]
        with pytest.raises(NoSpaceError):
            await client.put("a", "b")
        assert await client.maintenance.clear_alarms() == [Alarm(member, "nospace")]
        assert await client.maintenance.alarms() == []
        await client.put("a", "b")

    run(main, server)


def test_a_snapshot_is_saved_whole(server: str, run: Run, tmp_path: Path) -> None:
    path, seen = tmp_path / "snapshot.db", list[tuple[int, int]]()

    async def main(client: AsyncClient) -> None:
        for number in range(20):
            await client.put(f"big/{number}", bytes(200_000))
        saved = await client.maintenance.snapshot(
            path, progress=lambda done, left: seen.append((done, left))
        )
        assert saved.path == path and saved.size == path.stat().st_size > 20 * 200_000

    run(main, server)
    data = path.read_bytes()
    assert sha256(data[:-32]).digest() == data[-32:]
    assert seen == sorted(seen, key=lambda each: (each[0], -each[1]))
    assert seen[-1] == (len(data), 0)
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot.db"]
    # A real etcd's tool takes it.
    tool = "etcdutl" if is_target() else "etcdctl"
    subprocess.run([binary(tool), "snapshot", "status", path], check=True, capture_output=True)


@pytest.mark.parametrize(
    "data", [b"", bytes(512), bytes(512) + sha256(bytes(511)).digest(), bytes(100) + bytes(32)]
)
def test_what_is_no_snapshot_gets_no_name(data: bytes, tmp_path: Path) -> None:
    saving = Saving(tmp_path / "snapshot.db")
    saving.add(data)
    with pytest.raises(SnapshotError):
        saving.finish()
    saving.close()
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_fails_leaves_nothing(run: Run, tmp_path: Path) -> None:
    async def main(client: AsyncClient) -> None:
        with pytest.raises(UnavailableError):
            await client.maintenance.snapshot(tmp_path / "snapshot.db", timeout=0.5)

    run(main, "127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_users_get_what_their_roles_may(lone_server: str, run: Run, tmp_path: Path) -> None:
    async def main(client: AsyncClient) -> None:
        auth = client.auth
        await client.log_in()
        assert not (await auth.status()).is_enabled
        for user in ("root", "worker"):
            await auth.add_user(user, "secret")
            await auth.add_role(user)
            await auth.grant_role(user, user)
        await auth.add_user("guest", None)
        await auth.grant("worker", "readwrite", prefix="jobs/")
        await auth.grant("worker", "read", "config", end="confih")
        assert await auth.users() == ["guest", "root", "worker"]
        assert await auth.roles_of("worker") == ["worker"]
        assert await auth.permissions_of("worker") == [
            Permission("read", b"config", b"confih"),
            Permission("readwrite", b"jobs/", b"jobs0"),
        ]
        await auth.enable()

    async def as_worker(client: AsyncClient) -> None:
        await client.log_in()
        await client.put("jobs/1", "a")
        assert await client.count("config", end="confih") == 0
        with pytest.raises(PermissionDeniedError):
            await client.put("config", "a")
        with pytest.raises(PermissionDeniedError):
            await client.auth.users()
        # The key may be read, and those beside it may not: the server alone knows.
        async with client.watch(prefix="jobs/") as watch:
            with pytest.raises(PermissionDeniedError):
                async with client.watch("config", end="d") as refused:
                    await refused.changes()
            await client.put("jobs/1", "b")
            assert (await watch.changes()).events[0].kv.value == b"b"
        if is_target():
            # 3.5.1 gives snapshots to everybody.
            with pytest.raises(PermissionDeniedError):
                await client.maintenance.snapshot(tmp_path / "snapshot.db")
            assert list(tmp_path.iterdir()) == []

    async def as_nobody(client: AsyncClient) -> None:
        with pytest.raises(LoginFailedError):
            await client.put("jobs/1", "a")
        with pytest.raises(LoginFailedError) as caught:
            await client.log_in()
        assert caught.value.is_of_login

    async def as_root(client: AsyncClient) -> None:
        auth = client.auth
        assert (await client.maintenance.snapshot(tmp_path / "snapshot.db")).size > 512
        assert (await auth.status()).is_enabled
        await auth.change_password("worker", "other")
        await auth.revoke("worker", prefix="jobs/")
        await auth.revoke_role("worker", "worker")
        assert await auth.roles_of("worker") == []
        await auth.delete_user("worker")
        await auth.delete_user("guest")
        await auth.delete_role("worker")
        assert await auth.roles() == ["root"]
        with pytest.raises(RoleNotFoundError):
            await auth.permissions_of("worker")
        await auth.disable()
        # Nobody logs in where nobody has to.
        await client.log_in()
        await auth.delete_user("root")
        await auth.delete_role("root")

    run(main, lone_server)
    run(as_worker, lone_server, user="worker", password="secret")
    run(as_nobody, lone_server, user="worker", password="wrong")
    run(as_root, lone_server, user="root", password="secret")


def test_mistakes_are_named(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        with pytest.raises(ValueError, match="'all'; expected read, write, readwrite"):
            await client.auth.grant("role", "all", "key")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'full'; expected nospace or corrupt"):
            await client.maintenance.raise_alarm("full", 1)  # type: ignore[arg-type]

    run(main, server)
