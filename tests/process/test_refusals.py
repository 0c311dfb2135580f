"""Starts that are refused: one line says what is wrong and what to do, before the member runs."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kvorum.network.edge import Edge, TlsSettings
from kvorum.process.start_errors import system_text
from tests.certificates import Authority
from tests.cluster.members import TIMING
from tests.cluster.processes import Process, start
from tests.etcd import binary, is_target
from tests.kvorum import READY, command, running_kvorum
from tests.ports import held_ports
from tests.waiting import WAIT_SECONDS_MAX, until


def refused(directory: Path, *flags: str, scheme: str = "http") -> tuple[str, str]:
    """Start the server, which ends by itself; return title and text of its one complaint."""
    arguments = command(directory / "data", "127.0.0.1:0", *flags, scheme=scheme)[1:]
    content = ended(directory, arguments)
    lines = [json.loads(line) for line in content.splitlines()]
    fatal = [line for line in lines if line["level"] in ("error", "fatal")]
    assert [line["level"] for line in fatal] == ["fatal"] and fatal[0] is lines[-1], content
    # Nothing of the member has begun.
    assert not any("election" in line["msg"] or "recovered" in line["msg"] for line in lines)
    title = fatal[0]["msg"].removeprefix("failed to start etcd: ")
    assert title != fatal[0]["msg"]
    assert sum(line.get("error") == fatal[0]["error"] for line in lines) == 1
    return title, fatal[0]["error"]


def ended(directory: Path, arguments: list[str]) -> str:
    """Start the server, which ends by itself with exit code 1; return what it logged."""
    log = directory / "log"
    assert start("kvorum", arguments, log).wait(WAIT_SECONDS_MAX) == 1
    content = log.read_text()
    log.unlink()
    assert "Traceback" not in content
    return content


def kill(process: Process) -> None:
    """End a server that may run, and wait until it is gone: it writes into its directory."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_SECONDS_MAX)


def etcd_refused(directory: Path, *flags: str, scheme: str = "http") -> str:
    """Return why a real etcd refuses the same flags."""
    arguments = command(directory / "etcd", "127.0.0.1:0", *flags, scheme=scheme)[1:]
    done = subprocess.run(
        [str(binary("etcd")), *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    # Others of its threads may log a line behind it.
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (last,) = [line for line in lines if line["level"] == "fatal"]
    error: str = last["error"]
    return error


class Files:
    """TLS files, good and bad."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        pair, other = authority.issue("server"), authority.issue("other")
        self.cert, self.key, self.ca = str(pair.cert), str(pair.key), str(authority.cert)
        self.other_key = str(other.key)
        self.missing = str(directory / "missing.pem")
        self.directory = str(directory)
        self.nonsense = str(directory / "nonsense.pem")
        Path(self.nonsense).write_text("nothing of the kind")
        self.empty = str(directory / "empty.pem")
        Path(self.empty).touch()
        self.encrypted = str(directory / "encrypted.pem")
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
        Path(self.encrypted).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
        self.broken = str(directory / "broken.pem")
        lines = pair.cert.read_text().splitlines()
        Path(self.broken).write_text("\n".join([lines[0], *reversed(lines[1:-1]), lines[-1]]))
        expired = authority.issue("late", days=-1)
        self.expired, self.expired_key = str(expired.cert), str(expired.key)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def tls(files: Files, **changed: str) -> list[str]:
    """Return flags of TLS, some of them changed to other files, by their names in `Files`."""
    given = {"cert-file": "cert", "key-file": "key"}
    given |= {name.replace("_", "-"): value for name, value in changed.items()}
    return [f"--{name}={getattr(files, value)}" for name, value in given.items()]


MISTAKES = [
    ({"cert_file": "missing"}, "no such file or directory"),
    ({"key_file": "missing"}, "no such file or directory"),
    ({"key_file": "directory"}, "is a directory"),
    ({"cert_file": "nonsense"}, "tls: failed to find any PEM data in certificate input"),
    ({"key_file": "empty"}, "tls: failed to find any PEM data in key input"),
    ({"cert_file": "broken"}, "x509: malformed"),
    ({"key_file": "other_key"}, "tls: private key does not match public key"),
    ({"key_file": "encrypted"}, "encrypted"),
    ({"trusted_ca_file": "missing"}, "no such file or directory"),
    ({"trusted_ca_file": "empty"}, "it is empty"),
    ({"trusted_ca_file": "nonsense"}, "it holds none"),
    ({"trusted_ca_file": "ca", "client_crl_file": "nonsense"}, "no revocation list"),
    ({"client_cert_file": "cert", "client_key_file": "other_key"}, "does not match"),
    ({"peer_cert_file": "cert", "peer_key_file": "missing"}, "no such file or directory"),
    ({"peer_trusted_ca_file": "empty"}, "it is empty"),
]


@pytest.mark.parametrize(("changed", "reason"), MISTAKES, ids=str)
def test_tls_files_that_cannot_be_used(
    files: Files, tmp_path: Path, changed: dict[str, str], reason: str
) -> None:
    flags = tls(files, **changed)
    title, error = refused(tmp_path, *flags, scheme="https")
    assert title == "a TLS file cannot be used"
    wrong, name = list(changed.items())[-1]
    assert f"--{wrong.replace('_', '-')}={getattr(files, name)}" in error
    assert reason in error
    assert not (tmp_path / "data").exists()
    # Those that etcd reads only when a client connects are refused all the same.
    if not changed.keys() & {"client_crl_file", "trusted_ca_file", "peer_trusted_ca_file"}:
        theirs = etcd_refused(tmp_path, *flags, scheme="https")
        if reason[:4] in ("tls:", "no s", "is a"):
            assert reason in theirs


def test_switched_files_are_told(files: Files, tmp_path: Path) -> None:
    _, error = refused(tmp_path, *tls(files, cert_file="key", key_file="cert"), scheme="https")
    assert "switched" in error


def test_an_expired_certificate_is_told_and_used(files: Files) -> None:
    from datetime import UTC, datetime

    from kvorum.network.tls.files import check_files
    from kvorum.process.settings.checks import fill

    given = {"cert-file": files.expired, "key-file": files.expired_key}
    (doubt,) = check_files(fill(given).client_security, "", datetime.now(UTC))
    assert files.expired in doubt and "expired" in doubt and "Replace the file" in doubt
    given = {"cert-file": files.cert, "key-file": files.key, "trusted-ca-file": files.ca}
    assert not check_files(fill(given).client_security, "", datetime.now(UTC))
    early = datetime(2001, 1, 1, tzinfo=UTC)
    assert "clock" in check_files(fill(given).client_security, "", early)[0]


def test_files_without_a_url_that_needs_them_are_not_read(files: Files, tmp_path: Path) -> None:
    # The complaint is about the next thing that is wrong.
    flags = [*tls(files, cert_file="missing"), "--auto-compaction-retention=x"]
    title, error = refused(tmp_path, *flags)
    assert title == "a flag cannot be used" and "CompactionRetention" in error
    assert "CompactionRetention" in etcd_refused(tmp_path, *flags)


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_mistakes_are_told_in_etcds_order(tmp_path: Path) -> None:
    """A busy port comes before a wrong initial cluster, and a bad retention after both."""
    cluster, retention = (
        "--initial-cluster=default=127.0.0.1:2",
        "--auto-compaction-retention=x",
    )
    with listening() as client, listening() as peer:
        ports = [
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
        ]
        for flags, title, reason in (
            ([*ports, cluster, retention], "cannot listen", f"listen tcp 127.0.0.1:{peer}: bind: "),
            ([ports[1], cluster, retention], "cannot listen", f"listen tcp 127.0.0.1:{client}: "),
            (
                [cluster, retention],
                "the member does not fit the cluster",
                "error setting up initial cluster: ",
            ),
            (
                ["--initial-cluster=other=http://127.0.0.1:2", retention],
                "a flag cannot be used",
                "error parsing CompactionRetention: ",
            ),
            (
                ["--initial-cluster=other=http://127.0.0.1:2"],
                "the member does not fit the cluster",
                'couldn\'t find local name "default" in the initial cluster configuration',
            ),
            ([retention], "a flag cannot be used", "error parsing CompactionRetention: "),
        ):
            told, error = refused(tmp_path, *flags)
            assert told == title and error.startswith(reason)
            if is_target():
                assert reason in etcd_refused(tmp_path, *flags)


def test_who_has_the_port_is_named(tmp_path: Path) -> None:
    with listening() as port:
        _, error = refused(tmp_path, f"--listen-metrics-urls=http://127.0.0.1:{port}")
    own = Path("/proc/self/comm").read_text().strip()
    assert "address already in use" in error
    assert f"process {os.getpid()} ({own}) listens there" in error
    assert "--listen-metrics-urls" in error


def test_a_socket_that_is_served_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    flags = (f"--listen-client-urls=unix://{path}",)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        served.listen()
        title, error = refused(tmp_path, *flags)
        assert title == "cannot listen"
        assert f"process {os.getpid()}" in error and str(path) in error
    path.unlink()
    path.touch()
    assert "not a socket" in refused(tmp_path, *flags)[1]
    flags = (f"--listen-client-urls=unix://{tmp_path}/missing/socket",)
    assert "no such file or directory" in refused(tmp_path, *flags)[1]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    title, error = refused(tmp_path)
    assert title == "the data directory cannot be used"
    assert error.startswith("cannot access data directory: ") and "move the file away" in error


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "mount it writable"),
        (errno.EACCES, "give the user"),
        (errno.ENOSPC, "free some space"),
    ],
)
def test_errors_of_the_system_say_what_to_do(number: int, advice: str) -> None:
    text = system_text(OSError(number, os.strerror(number), "/some/file"))
    assert text.startswith(f"/some/file: {os.strerror(number).lower()}; ") and advice in text


def test_a_member_among_strangers_ends_and_they_go_on(tmp_path: Path) -> None:
    with held_ports(3) as ports, ExitStack() as running:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        listed = ",".join(f"m{number}={url}" for number, url in enumerate(urls))

        def flags(number: int, token: str) -> list[str]:
            return [
                f"--name=m{number}",
                f"--listen-peer-urls={urls[number]}",
                f"--initial-advertise-peer-urls={urls[number]}",
                f"--initial-cluster={listed}",
                f"--initial-cluster-token={token}",
                # With the shortest, a busy machine might elect for ever.
                *TIMING,
            ]

        members: list[tuple[Process, Path]] = []
        for number in range(2):
            log = tmp_path / f"log{number}"
            log.touch()
            arguments = command(tmp_path / f"m{number}", "127.0.0.1:0", *flags(number, "theirs"))
            members.append((start("kvorum", arguments[1:], log), log))
            running.callback(kill, members[number][0])

        def is_ready(member: Process, log: Path) -> bool:
            assert member.poll() is None, log.read_text()
            return READY in log.read_text()

        for member, log in members:
            until(f"{log} says that it serves", partial(is_ready, member, log))
        # Before it starts, or after a while if they did not answer in time.
        content = ended(tmp_path, command(tmp_path / "data", "127.0.0.1:0", *flags(2, "own"))[1:])
        last = json.loads(content.splitlines()[-1])
        assert last["msg"] == "failed to start etcd: the member does not fit the cluster"
        assert "cluster ID mismatch" in last["error"]
        assert "--initial-cluster-token" in last["error"]
        assert [member.poll() for member, _ in members] == [None, None]


def test_a_member_that_the_cluster_does_not_expect(tmp_path: Path) -> None:
    with held_ports(2) as ports:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        own = [
            f"--listen-peer-urls={urls[0]}",
            f"--initial-advertise-peer-urls={urls[0]}",
            f"--initial-cluster=default={urls[0]}",
        ]
        with running_kvorum(tmp_path / "running", *own):
            title, error = refused(
                tmp_path,
                "--name=other",
                f"--listen-peer-urls={urls[1]}",
                f"--initial-advertise-peer-urls={urls[1]}",
                f"--initial-cluster=default={urls[0]},other={urls[1]}",
                "--initial-cluster-state=existing",
            )
    assert title == "the member does not fit the cluster"
    assert error.startswith("member count is unequal") and "run 'etcdctl member add' first" in error


def test_a_key_that_the_edge_cannot_use_is_found_before_the_member_starts(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may be well-formed and still be of no use to the edge, which has the last word."""
    from kvorum.network.edge.pure.edge import PureEdge
    from kvorum.process.main import run

    def refuse(_edge: Edge, settings: TlsSettings) -> None:
        raise OSError(errno.EINVAL, f"{settings.key_file}: the key is too strange")

    monkeypatch.setenv("KVORUM_EDGE", "python")
    monkeypatch.setattr(PureEdge, "check_tls", refuse)
    log = tmp_path / "log"
    data = tmp_path / "data"
    flags = [*tls(files), f"--log-outputs={log}"]
    assert run(command(data, "127.0.0.1:0", *flags, scheme="https")[1:]) == 1
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["msg"] == "failed to start etcd: a TLS file cannot be used"
    assert re.search("too strange", last["error"])
    assert not list(data.glob("member/wal"))
