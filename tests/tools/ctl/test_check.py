"""`check`: refusals beside etcdctl's, and short runs of our own, whose duration is patched."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from kvorum.client.sync.client import Client
from kvorum.tools.ctl import check
from kvorum.tools.ctl.check import Load, Pace, Results
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.tools.ctl.duel import PATIENCE, Duel, run_here
from tests.waiting import WAIT_SECONDS_MAX

PERF = re.compile(
    rb"(PASS: Throughput is|FAIL: Throughput too low:) \d+ writes/s\n"
    rb"(PASS: Slowest request took|Slowest request took too long:) \d+\.\d{6}s\n"
    rb"(PASS: Stddev is|Stddev too high:) \d+\.\d{6}s\n(PASS|FAIL)\n"
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PERF_SECONDS", 0.2)
    monkeypatch.setattr(check, "PERF_LOADS", {"s": Load(100, 5), "xl": Load(100, 60)})
    monkeypatch.setattr(check, "DATASCALE_LOADS", {"s": Load(100, 5), "m": Load(100, 60)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_kvorum(tmp_path_factory.mktemp("check")) as running:
        yield running.address


@pytest.mark.parametrize("command", ["perf", "datascale"])
def test_what_is_refused(duel: Duel, command: str) -> None:
    duel.compare("put", "/there/a", "1")
    for options in (("--load=x",), ("--load=",), ("--prefix=/there/",), ("--prefix=",)):
        duel.compare("check", command, *options)
    duel.compare("get", "--prefix", "/there/")


@pytest.mark.parametrize("load", ["s", "small", "xl", "xLarge"])
def test_a_load_is_judged(server: str, load: str) -> None:
    outcome = run_here([f"--endpoints={server}", *PATIENCE, "check", "perf", f"--load={load}"])
    found = PERF.fullmatch(outcome.out)
    assert found, outcome
    is_good = all(each.startswith(b"PASS") for each in found.groups()[:3])
    assert found[4] == (b"PASS" if is_good else b"FAIL")
    assert outcome.code == (0 if is_good else 1)
    with Client(server) as client:
        assert client.count(prefix="/etcdctl-check-perf/") == 0


def test_compaction_and_defragmentation(server: str) -> None:
    options = ("--auto-compact", "--auto-defrag", "--prefix=mine/")
    for command in ("perf", "datascale"):
        words = ("check", command, *options)
        lines = run_here([f"--endpoints={server}", *PATIENCE, *words]).out.splitlines()
        with Client(server) as client:
            revision = client.read("a").revision
        at = lines.index(b"Compacting with revision %d" % revision)
        assert lines[at + 1 : at + 4] == [
            b"Compacted with revision %d" % revision,
            f'Defragmenting "{server}"'.encode(),
            f'Defragmented "{server}"'.encode(),
        ]


@pytest.mark.parametrize("load", ["s", "m"])
def test_memory_is_measured(server: str, load: str) -> None:
    with Client(server) as client:
        before = client.read("a").revision
        words = ("check", "datascale", f"--load={load}")
        outcome = run_here([f"--endpoints=http://{server}", *PATIENCE, *words])
        after = client.read("a").revision
    clients = check.DATASCALE_LOADS[load].clients
    assert re.fullmatch(
        rb"Start data scale check for work load \[100 key-value pairs, 1024 bytes per key-value, "
        rb"%d concurrent clients\]\.\n"
        rb"PASS: Approximate system memory used : -?\d+\.\d\d MB\.\n" % clients,
        outcome.out,
    ), outcome
    assert after - before == 101, "every key, and the deletion of them all"


def test_errors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A time may be over before a busy machine has written anything; so many writes are made.
    monkeypatch.setattr(check, "Pace", lambda **_: Pace(count=100))
    with running_kvorum(tmp_path) as running, Client(running.address) as client:
        (member,) = client.members.list()
        client.maintenance.raise_alarm("nospace", member.id)
        for command in ("perf", "datascale"):
            outcome = run_here([f"--endpoints={running.address}", *PATIENCE, "check", command])
            assert outcome.code == 1
            assert re.search(
                rb"FAIL: too many errors\n"
                rb"FAIL: ERROR\(etcdserver: mvcc: database space exceeded\) -> \d+\n",
                outcome.out,
            ), outcome


def test_no_server() -> None:
    with held_port() as port:
        for command in ("perf", "datascale"):
            words = (f"--endpoints=127.0.0.1:{port}", "--command-timeout=50ms", "check", command)
            outcome = run_here([*words])
            assert (outcome.code, outcome.out) == (1, b"")
            assert outcome.err.endswith(b"Error: context deadline exceeded\n")


def test_metrics_that_are_not_served(tmp_path: Path) -> None:
    flags = (f"--listen-client-urls=http://127.0.0.1:0,unix://{tmp_path}/socket",)
    with running_kvorum(tmp_path / "data", *flags):
        outcome = run_here([f"--endpoints=unix://{tmp_path}/socket", "check", "datascale"])
    assert outcome.code == 1
    assert outcome.out.endswith(
        b"FAIL: Could not read process_resident_memory_bytes before the put operations.\n"
    )


def test_an_interruption_cleans_up(server: str) -> None:
    prefix = "interrupted/"
    program = "from kvorum.tools.ctl import check, main; check.PERF_SECONDS = 600; main.main()"
    command = [sys.executable, "-c", program, f"--endpoints={server}", "check", "perf"]
    with Client(server) as client, client.watch(prefix=prefix) as watch:
        process = subprocess.Popen([*command, f"--prefix={prefix}"], stdout=subprocess.PIPE)
        next(iter(watch))
        process.send_signal(2)
        out, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
        assert PERF.fullmatch(out)
        assert process.returncode in (0, 1)
        assert client.count(prefix=prefix) == 0


def test_limits() -> None:
    for slow, often in product((0.1, 0.51), (85, 95)):
        results = Results()
        results.seconds = [0.01] * (often - 1) + [slow]
        results.total_seconds = 1.0
        assert results.slowest == slow
        assert results.per_second == often
    results.seconds = [1.0, 3.0]
    assert results.deviation == 1.0
    assert Results().deviation == Results().slowest == 0.0


def test_a_pace_gives_as_many_turns_as_it_has() -> None:
    async def turns(pace: Pace) -> int:
        taken = 0

        async def client() -> None:
            nonlocal taken
            while await pace.wait_turn():
                taken += 1
                if taken == 20:
                    pace.stop()

        await asyncio.gather(*(client() for _ in range(3)))
        return taken

    assert asyncio.run(turns(Pace(count=7))) == 7
    assert asyncio.run(turns(Pace(rate=10_000))) <= 23
    assert asyncio.run(turns(Pace(rate=10_000, seconds=0))) == 0
