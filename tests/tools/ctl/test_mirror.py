"""`make-mirror`: what arrives at the other cluster, beside etcdctl's."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvorum.client.sync.client import Client
from kvorum.client.transactions import delete, put
from tests.etcd import binary, is_target
from tests.ports import held_port
from tests.tools.ctl.duel import KINDS, Duel, duel_of

OURS = (sys.executable, "-m", "kvorum.tools.ctl.main")
Content = dict[bytes, tuple[bytes, int]]


@pytest.fixture(scope="module", params=KINDS)
def sources(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Duel]:
    """Two servers with the same content: one is mirrored by etcdctl, the other by us."""
    if not is_target():
        pytest.skip("etcdctl 3.5.1 has other bugs; 'make oracle' builds 3.7.3")
    with duel_of(request.param, tmp_path_factory.mktemp("sources")) as found:
        yield found


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, sources: Duel) -> Iterator[Duel]:
    with duel_of(sources.kind, tmp_path_factory.mktemp("targets")) as found:
        yield found


@contextmanager
def mirroring(tool: tuple[str, ...], source: str, target: str, *options: str) -> Iterator[None]:
    command = [*tool, f"--endpoints={source}", "make-mirror", *options, target]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def content(client: Client, prefix: str) -> Content:
    """Return keys with their values and how often they were set."""
    return {each.key: (each.value, each.version) for each in client.range(prefix=prefix)}


def arrived(target: Client, last: str) -> None:
    """Wait until a key is there."""
    with target.watch(last, revision=1) as watch:
        if target.get(last) is None:
            next(iter(watch))


@pytest.mark.parametrize(
    ("prefix", "options", "new"),
    [
        # Each has a prefix of its own: what is at a source stays there.
        ("plain/", (), "{}"),
        ("moved/", ("--dest-prefix=to/",), "to/"),
        ("bare/", ("--no-dest-prefix",), ""),
        ("small/", ("--max-txn-ops=2",), "{}"),
    ],
)
def test_keys_and_their_changes_arrive(
    sources: Duel, targets: Duel, prefix: str, options: tuple[str, ...], new: str
) -> None:
    found: list[Content] = []
    tools = ((str(binary("etcdctl")),), OURS)
    addresses = zip(
        tools, (sources.theirs, sources.ours), (targets.theirs, targets.ours), strict=True
    )
    for tool, source_address, target_address in addresses:
        with Client(source_address) as source, Client(target_address) as target:
            # One that keys replace is in the way: it would be found in the next round.
            target.delete(from_key="\0")
            source.put("outside", "1")
            for number in range(5):
                source.put(f"{prefix}{number}", f"before {prefix}")
            source.put(f"{prefix}based")
            named = new.format(prefix)
            with mirroring(tool, source_address, target_address, f"--prefix={prefix}", *options):
                arrived(target, f"{named}based")
                steps = [put(f"{prefix}{number}", "after") for number in range(1, 5)]
                source.txn().then(*steps, delete(f"{prefix}0")).commit()
                source.put(f"{prefix}1", "once more")
                source.put("outside", "2")
                source.put(f"{prefix}last", b"\xff\0")
                arrived(target, f"{named}last")
            found.append(content(target, ""))
    assert found[0] == found[1]
    assert set(found[1]) == {
        f"{new.format(prefix)}{each}".encode() for each in (1, 2, 3, 4, "based", "last")
    }


def test_from_a_revision_on_the_prefix_stays(sources: Duel, targets: Duel) -> None:
    # etcdctl cuts it off.
    with Client(sources.ours) as source, Client(targets.ours) as target:
        source.put("rev/old", "1")
        revision = source.put("rev/new", "2").revision
        options = ("--prefix=rev/", f"--rev={revision}")
        with mirroring(OURS, sources.ours, targets.ours, *options):
            arrived(target, "rev/new")
        assert list(content(target, "rev/")) == [b"rev/new"]


def test_history_that_is_gone(sources: Duel, targets: Duel) -> None:
    addresses = ((sources.theirs, targets.theirs), (sources.ours, targets.ours))
    for address, _ in addresses:
        with Client(address) as source:
            source.put("gone", "1")
            source.compact(source.put("gone", "2").revision)
    outcomes = [
        subprocess.run(
            [*tool, f"--endpoints={source}", "make-mirror", "--rev=2", target],
            capture_output=True,
            timeout=60,
        )
        for tool, (source, target) in zip(((str(binary("etcdctl")),), OURS), addresses, strict=True)
    ]
    assert [each.returncode for each in outcomes] == [1, 1]
    last = {each.stderr.splitlines()[-1] for each in outcomes}
    assert last == {b"Error: etcdserver: mvcc: required revision has been compacted"}


def test_totals_are_printed(sources: Duel, targets: Duel) -> None:
    program = "from kvorum.tools.ctl import main, mirror; mirror.TOTAL_SECONDS = 0.01; main.main()"
    with Client(sources.ours) as source:
        for number in range(3):
            source.put(f"total/{number}")
    command = [sys.executable, "-c", program, f"--endpoints={sources.ours}", "make-mirror"]
    with subprocess.Popen(
        [*command, "--prefix=total/", targets.ours], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        totals = [0]
        while totals[-1] < 3:
            totals.append(int(process.stdout.readline()))
        process.kill()
    assert totals == sorted(totals)


def test_misuse(sources: Duel) -> None:
    with held_port() as port:
        for words in (
            (),
            ("a", "b"),
            (f"127.0.0.1:{port}", "--dest-prefix=a", "--no-dest-prefix"),
            (f"127.0.0.1:{port}", "--dest-user=a:b", "--dial-timeout=50ms"),
            (f"127.0.0.1:{port}", "--dest-cert=/none", "--dest-key=/none"),
            (f"127.0.0.1:{port}", "--max-txn-ops=-1"),
        ):
            code = sources.compare(
                "make-mirror", *words, err=False, change=lambda data: data.partition(b"Usage:")[0]
            ).code
            assert code in (1, 2, 128)
