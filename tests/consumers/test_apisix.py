"""What Apache APISIX sends, replayed with curl: ours answers as a real etcd does."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.consumers import apisix
from tests.consumers.apisix import Call
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum

pytestmark = pytest.mark.timeout(120)

CURL = ("curl", "--silent", "--show-error", "--http1.1", "--no-buffer")
OWN = ("cluster_id", "member_id", "raft_term")
"""Fields of a header that differ between any two clusters."""


@pytest.fixture(autouse=True)
def curl() -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")


def arguments(server: str, call: Call, captured: dict[str, str]) -> list[str]:
    """Return the command line of a call."""
    words = [*CURL, f"http://{server}{call.path}"]
    for header in call.headers:
        words += ["--header", header]
    if call.body is not None:
        words += ["--data-binary", call.body]
    for name, value in captured.items():
        words = [word.replace(f"${name}$", value) for word in words]
    return words


def normalized(value: Any, captured: dict[str, str]) -> Any:
    """Return an answer without what differs between any two servers."""
    if isinstance(value, dict):
        names = set(value) - set(OWN)
        if "grantedTTL" in value:
            names.discard("TTL")
        if "code" in value:
            # Which etcd 3.5 gives besides the message, with the same text.
            names -= {"error", "details"}
        return {name: normalized(value[name], captured) for name in sorted(names)}
    if isinstance(value, list):
        return [normalized(each, captured) for each in value]
    return next((f"${name}$" for name, known in captured.items() if known == value), value)


def replay(server: str, calls: Iterable[Call]) -> list[tuple[str, str, Any]]:
    """Make the calls one after the other; return path, status and answer of each."""
    captured: dict[str, str] = {}
    answers = []
    for call in calls:
        words = [*arguments(server, call, captured), "--write-out", "\n%{http_code}"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        text, _, status = done.stdout.rpartition("\n")
        answer = json.loads(text)
        captured |= {name: answer[name] for name in call.captures}
        if call.path == "/version":
            for name in ("etcdserver", "etcdcluster"):
                assert re.fullmatch(r"\d+\.\d+\.\d+", answer[name])
        else:
            answers.append((call.path, status, normalized(answer, captured)))
    return answers


@contextmanager
def watching(server: str, start_revision: int) -> Iterator[subprocess.Popen[str]]:
    """Run a curl that watches; it closes its connection when the block ends."""
    words = arguments(server, Call("/v3/watch", apisix.watch(start_revision)), {})
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next message of a watch."""
    assert process.stdout is not None
    result: dict[str, Any] = json.loads(process.stdout.readline())["result"]
    return result


def put(server: str, name: str) -> int:
    """Write a key below the prefix; return its revision."""
    body = json.dumps({"key": apisix.encoded(apisix.PREFIX + name), "value": ""})
    ((_, status, answer),) = replay(server, [Call("/v3/kv/put", body)])
    assert status == "200"
    return int(answer["header"]["revision"])


@pytest.mark.long
def test_calls(tmp_path: Path) -> None:
    calls = [
        *apisix.start_up(),
        *apisix.work(),
        *apisix.enable_authentication(),
        *apisix.work_with_a_user(),
    ]
    with (
        running_kvorum(tmp_path / "kvorum.data", "--bcrypt-cost=4") as kvorum,
        running_etcd(tmp_path / "etcd.data", "--bcrypt-cost=4") as etcd,
    ):
        assert replay(kvorum.address, calls) == replay(etcd.address, calls)


def test_a_watch_that_is_taken_up_again(server: str) -> None:
    """A worker closes a watch that was idle, and goes on after the last revision it has seen."""
    first = put(server, "routes/1")
    with watching(server, first) as process:
        created = heard(process)
        assert created["created"] and "events" not in created
        seen = [heard(process)]
        for number in (2, 3):
            put(server, f"routes/{number}")
            seen.append(heard(process))
    missed = put(server, "routes/4")
    last = int(seen[-1]["header"]["revision"])
    with watching(server, last + 1) as process:
        assert heard(process)["created"]
        seen.append(heard(process))
    revisions = [int(event["kv"]["mod_revision"]) for each in seen for event in each["events"]]
    assert revisions == [*range(first, missed + 1)]


def test_a_watch_from_a_compacted_revision(server: str) -> None:
    for number in range(3):
        last = put(server, f"routes/{number}")
    replay(server, [Call("/v3/kv/compaction", json.dumps({"revision": last}))])
    with watching(server, last - 1) as process:
        assert heard(process)["created"]
        canceled = heard(process)
    assert canceled["canceled"] and int(canceled["compact_revision"]) == last
