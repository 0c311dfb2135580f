"""Data of a real etcd with authentication enabled: refused at every door, with what to do."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.auth.enabled import is_enabled
from kvorum.backend.buckets import AUTH, AUTH_ENABLED
from kvorum.member.errors import MemberStopped, StartRefused
from tests.etcd import Etcd, chosen, running_etcd
from tests.kvorum import command, running_kvorum
from tests.member.harness import Cluster
from tests.ports import held_port
from tests.utl.commands import done, refusal

ROOT = ("--user", "root:secret")


def enable(etcd: Etcd) -> None:
    """Serve only those who authenticate."""
    etcd.ask("auth/user/add", name="root", password="secret")
    etcd.ask("auth/role/add", name="root")
    etcd.ask("auth/user/grant", user="root", role="root")
    etcd.ask("auth/enable")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an etcd's data, `data`, and a snapshot of it, `saved.db`."""
    directory = tmp_path_factory.mktemp("guarded")
    with running_etcd(directory / "data") as etcd:
        etcd.put(b"secret", b"of root")
        enable(etcd)
        save = ("snapshot", "save", directory / "saved.db")
        done("etcdctl", f"--endpoints={etcd.address}", *ROOT, *save)
    return directory


def test_a_snapshot_of_it_is_not_restored(guarded: Path, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    code, text = refusal("snapshot", "restore", guarded / "saved.db", "--data-dir", target)
    assert code == 1 and "authentication is enabled" in text and "auth disable" in text
    assert not target.exists()


def test_its_directory_is_not_taken_over(guarded: Path, tmp_path: Path) -> None:
    target = tmp_path / "taken"
    code, text = refusal("migrate", "--data-dir", guarded / "data", "--output-dir", target)
    assert code == 1 and "authentication is enabled" in text and "auth disable" in text
    assert not target.exists()


def test_nor_is_one_whose_log_has_users_that_the_database_lacks(tmp_path: Path) -> None:
    database = tmp_path / "data/member/snap/db"
    with running_etcd(tmp_path / "data", "--backend-batch-interval=1h") as etcd:
        before = database.read_bytes()
        etcd.ask("auth/user/add", name="root", password="secret")
        etcd.process.kill()
    # As if it had been killed before the commit, which comes right behind every such change.
    database.write_bytes(before)
    migrate = ("migrate", "--data-dir", tmp_path / "data", "--output-dir", tmp_path / "taken")
    code, text = refusal(*migrate)
    assert code == 1 and "changes users, roles or authentication" in text
    assert not (tmp_path / "taken").exists()


def test_once_it_is_disabled_users_are_kept_and_everything_is_served(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "data") as etcd:
        etcd.put(b"key", b"value")
        enable(etcd)
        done("etcdctl", f"--endpoints={etcd.address}", *ROOT, "auth", "disable")
        # Requests that only read go through the log, too, and stop no reader.
        etcd.ask("auth/user/list")
        status = etcd.ask("auth/status")
    source, ours, back = tmp_path / "data", tmp_path / "ours", tmp_path / "back"
    done("kvorumutl", "migrate", "--data-dir", source, "--output-dir", ours)
    with running_kvorum(ours) as kvorum:
        read = done("etcdctl", f"--endpoints={kvorum.address}", "get", "key")
    assert read == "key\nvalue\n"
    version = ".".join(map(str, chosen().version[:2]))
    to_etcd = ("migrate", "--to-etcd", f"--target-version={version}")
    done("kvorumutl", *to_etcd, "--data-dir", ours, "--output-dir", back)
    with running_etcd(back) as etcd:
        assert etcd.ask("auth/user/list")["users"] == ["root"]
        assert etcd.ask("auth/status")["authRevision"] == status["authRevision"]


def test_a_directory_with_it_does_not_start() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    machine.running.backend.put(AUTH, AUTH_ENABLED, b"\x01")
    cluster.answer(machine, machine.put(b"key", b"value"))
    cluster.pass_time(1.0)
    machine.kill()
    with pytest.raises(StartRefused, match=r"authentication is enabled .* --to-etcd"):
        machine.start()


@pytest.fixture
def leader(guarded: Path, tmp_path: Path) -> Iterator[tuple[Etcd, str]]:
    """Run an etcd whose log begins after authentication was enabled; yields its peer URL, too."""
    with ExitStack() as stack:
        port = stack.enter_context(held_port())
        url = f"http://127.0.0.1:{port}"
        cluster = (f"--initial-cluster=default={url}", f"--initial-advertise-peer-urls={url}")
        data = tmp_path / "leader"
        done("etcdutl", "snapshot", "restore", guarded / "saved.db", "--data-dir", data, *cluster)
        flags = (*cluster, f"--listen-peer-urls={url}")
        yield stack.enter_context(running_etcd(data, *flags)), url


def test_a_leaders_snapshot_of_it_is_not_installed(
    leader: tuple[Etcd, str], tmp_path: Path
) -> None:
    etcd, url = leader
    with held_port() as port:
        own = f"http://127.0.0.1:{port}"
        add = ("member", "add", "joiner", f"--peer-urls={own}", "--learner")
        done("etcdctl", f"--endpoints={etcd.address}", *ROOT, *add)
        flags = (
            "--name=joiner",
            "--initial-cluster-state=existing",
            f"--initial-cluster=default={url},joiner={own}",
            f"--listen-peer-urls={own}",
            f"--initial-advertise-peer-urls={own}",
        )
        # It ends by itself, and at the next start, too.
        for reason in ("is not installed", "failed to start"):
            ended = subprocess.run(
                command(tmp_path / "joiner", "127.0.0.1:0", *flags),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert ended.returncode == 1
            assert reason in ended.stderr and "authentication is enabled" in ended.stderr
            assert "ready to serve client requests" not in ended.stderr


def entry(**request: object) -> bytes:
    """Return the data of an entry as etcd would write it."""
    made = InternalRaftRequest(**request)  # type: ignore[arg-type]
    made.header.ID = 7
    return made.SerializeToString()


@pytest.mark.parametrize(
    "change",
    ["auth_enable", "auth_user_add", "auth_user_change_password", "auth_role_grant_permission"],
)
def test_an_entry_that_changes_it_stops_the_member(change: str) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    machine.running.node.propose(entry(**{change: {}}))
    with pytest.raises(MemberStopped, match="changes users, roles or authentication"):
        cluster.settle()


def test_entries_that_ask_about_it_change_nothing() -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    revision = machine.running.store.revision
    questions = ("auth_disable", "auth_status", "authenticate", "auth_user_get")
    for question in (*questions, "auth_user_list", "auth_role_list", "auth_role_get"):
        machine.running.node.propose(entry(**{question: {}}))
    cluster.settle()
    assert machine.running.store.revision == revision
    assert not is_enabled(machine.running.backend)
    cluster.answer(machine, machine.put(b"key", b"value"))
