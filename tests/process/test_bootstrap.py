"""How a member enters a cluster whose members answer as a test wants."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvorum.member.config import MemberConfig
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.process.bootstrap import bootstrap
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.flags import parse_arguments
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import ClusterSettingsError
from kvorum.state.membership.documents import MemberDocument, encode_members
from kvorum.storage.files.real import RealFiles

CLUSTER = 0xABC
OWN_URL = "http://127.0.0.1:1"


class Answering(ThreadingHTTPServer):
    """A member that knows another one, which was added and has not started."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        self.is_endless = False
        self.members = [MemberDocument(1, (self.url,), name="other"), MemberDocument(2, (OWN_URL,))]


class Handler(BaseHTTPRequestHandler):
    server: Answering
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.is_endless:
            self.send_response(200)
            self.send_header("X-Etcd-Cluster-ID", f"{CLUSTER:x}")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * 65536)
            except OSError:
                return
        body = {
            "/members": encode_members(self.server.members),
            "/version": json.dumps({"etcdcluster": "3.7.0"}).encode(),
            "/downgrade/enabled": b"false",
        }[self.path]
        self.send_response(200)
        self.send_header("X-Etcd-Cluster-ID", f"{CLUSTER:x}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_details: object) -> None:
        """Log nothing."""


@contextmanager
def answering() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def other() -> Iterator[Answering]:
    with answering() as server:
        yield server


def entered(
    directory: Path, *flags: str, urls: str, state: str = "existing"
) -> tuple[MemberConfig, list[int]]:
    given, _ = parse_arguments(
        [
            "--name=own",
            f"--initial-advertise-peer-urls={OWN_URL}",
            f"--initial-cluster=own={OWN_URL},{urls}",
            f"--initial-cluster-state={state}",
            *flags,
        ]
    )
    config = make_config(given)
    credentials = TlsCredentials(DialSettings(), print)
    told = bootstrap(config, str(directory), RealFiles(), credentials, Logger([]))
    settings, known = asyncio.run(told)
    return settings, [each.id for each in known]


def test_a_member_joins(other: Answering, tmp_path: Path) -> None:
    settings, known = entered(tmp_path, urls=f"other={other.url}")
    assert settings.joins == (2, CLUSTER)
    assert known == [1, 2]
    assert other.asked == ["/members", "/version", "/downgrade/enabled"]


def test_a_member_that_joins_nobody(tmp_path: Path) -> None:
    with pytest.raises(ClusterSettingsError, match=r"cannot fetch cluster info.*127\.0\.0\.1:9"):
        entered(tmp_path, urls="other=http://127.0.0.1:9")


def test_an_answer_without_end(other: Answering, tmp_path: Path) -> None:
    other.is_endless = True
    with pytest.raises(ClusterSettingsError, match="cannot fetch cluster info"):
        entered(tmp_path, urls=f"other={other.url}")


def test_a_new_member_goes_on_though_nobody_answers(tmp_path: Path) -> None:
    settings, known = entered(tmp_path, urls="other=http://127.0.0.1:9", state="new")
    assert settings.joins is None
    assert len(known) == 2


def test_a_new_member_that_the_others_know(other: Answering, tmp_path: Path) -> None:
    # One member that does not answer might be of the same cluster.
    urls = f"other={other.url},third=http://127.0.0.1:9"
    settings, known = entered(tmp_path, urls=urls, state="new")
    assert settings.joins is None
    other.members = [
        MemberDocument(each, (OWN_URL,), name="x", client_urls=("http://127.0.0.1:2",))
        for each in known
    ]
    with pytest.raises(ClusterSettingsError, match=r"has already been bootstrapped.*--data-dir"):
        entered(tmp_path, urls=urls, state="new")


def test_a_new_member_among_strangers(other: Answering, tmp_path: Path) -> None:
    with answering() as third:
        urls = f"other={other.url},third={third.url}"
        with pytest.raises(
            ClusterSettingsError, match=r"cluster ID mismatch.*--initial-cluster-token"
        ):
            entered(tmp_path, urls=urls, state="new")
    assert other.asked == third.asked == ["/members"]


def test_a_log_decides(other: Answering, tmp_path: Path) -> None:
    log = tmp_path / "wal"
    log.mkdir()
    (log / "0000000000000000-0000000000000000.wal").touch()
    settings, known = entered(tmp_path, urls=f"other={other.url}")
    assert settings.joins is None
    assert not known
    assert not other.asked


def test_a_list_that_does_not_fit_this_member(tmp_path: Path) -> None:
    other = "other=http://127.0.0.1:9"
    with pytest.raises(ClusterSettingsError, match='couldn\'t find local name "x"'):
        entered(tmp_path, "--name=x", urls=other)
    with pytest.raises(ClusterSettingsError, match=r"-urls=http://127\.0\.0\.1:3"):
        entered(tmp_path, "--initial-advertise-peer-urls=http://127.0.0.1:3", urls=other)
    with pytest.raises(ClusterSettingsError, match=f"duplicate url: {OWN_URL}"):
        entered(tmp_path, urls=f"other={OWN_URL}")
