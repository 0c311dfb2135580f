"""Programs that open a damaged database: they refuse it with what to do, or tell the truth.

No program may die of a signal, hang or print a traceback, whatever happened to the file.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from kvorum.client.sync.client import Client
from tests.kvorum import running_kvorum
from tests.storage.backend.mutations import PAGE_BYTES, mutated
from tests.tools.utl.mangler import Mangler

DAMAGED = (
    "backend.",
    "The file is damaged",
    # What values say is refused by those that read them.
    "mvcc: ",
)


class Site(NamedTuple):
    """A data directory, whole, and where it is damaged."""

    whole: Path
    place: Path
    mangler: Mangler
    expected: dict[str, list[tuple[int, str]]]
    """What each program answers of the newest commit, and of the one before."""

    @property
    def database(self) -> Path:
        """The database of the directory that is damaged."""
        (path,) = self.place.glob("member/backend/backend.[0-9]")
        return path

    def put(self, content: bytes | None = None) -> None:
        """Make the place anew, with another database."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.rmtree(self.target, ignore_errors=True)
        shutil.copytree(self.whole, self.place)
        if content is not None:
            self.database.write_bytes(content)

    @property
    def target(self) -> Path:
        """Where a program makes another directory."""
        return self.place.with_name("target")

    def run(self, name: str) -> tuple[int, str, str]:
        """Run a program by its name below."""
        program, *words = PROGRAMS[name]
        words = [word.format(place=self.place, target=self.target) for word in words]
        return self.mangler.run(program, *words)


SERVER = (
    "--data-dir={place}",
    "--listen-client-urls=http://127.0.0.1:0",
    "--advertise-client-urls=http://127.0.0.1:2",
    "--listen-peer-urls=http://127.0.0.1:0",
    "--initial-advertise-peer-urls=http://127.0.0.1:2",
    "--initial-cluster=default=http://127.0.0.1:2",
    "--heartbeat-interval=10",
    "--election-timeout=50",
)
DATA = "--data-dir={place}"
PROGRAMS: dict[str, tuple[str, ...]] = {
    "verify": ("kvorumutl", "verify", DATA),
    "hashkv": ("kvorumutl", "hashkv", "{place}"),
    "hash": ("kvorumutl", "dump", "db", "hash", "{place}"),
    "buckets": ("kvorumutl", "dump", "db", "list-bucket", "{place}"),
    "rows": ("kvorumutl", "dump", "db", "iterate-bucket", "{place}", "key", "--decode"),
    "leases": ("kvorumutl", "dump", "db", "iterate-bucket", "{place}", "lease", "--decode"),
    "scan": ("kvorumutl", "dump", "db", "scan-keys", "{place}", "0"),
    "defrag": ("kvorumutl", "defrag", DATA),
    "version": ("kvorumutl", "migrate", DATA, "--target-version=3.6"),
    "migrate": ("kvorumutl", "migrate", "--to-etcd", DATA, "--output-dir={target}"),
    "doctor": ("kvorumctl", "doctor", DATA),
    "server": ("kvorum", *SERVER),
    "forced": ("kvorum", *SERVER, "--force-new-cluster"),
    "embed": ("embed", "{place}"),
}
CHANGING = {"defrag", "version", "server", "forced", "embed"}
"""After these the keys are compared."""
FOREIGN = {"scan", "doctor"}
"""These look at damaged directories: what they say is not compared."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    whole = tmp_path_factory.mktemp("whole") / "data"
    chance = random.Random(4)
    with running_kvorum(whole) as server, Client([server.address]) as client:
        for number in range(250):
            size = chance.choice((3, 200, 900, 5000))
            client.put(f"key {number % 150:05}", chance.randbytes(size))
        for _ in range(40):
            client.lease(3600)
        for number in range(0, 150, 3):
            client.delete(f"key {number:05}")
        client.compact(300)
    with closing(Mangler()) as mangler:
        yield Site(whole, tmp_path_factory.mktemp("place") / "data", mangler, {})


def learn(site: Site, names: Sequence[str]) -> None:
    """Note what programs answer of the newest commit, and of the one before."""
    site.put()
    content = site.database.read_bytes()
    for name in {*names, "hashkv"} - site.expected.keys():
        answers = site.expected[name] = []
        for each in (content, before(content)):
            site.put(each)
            code, output, errors = site.run(name)
            assert not code or name in FOREIGN, (name, code, errors)
            answers.append((code, output))


def before(content: bytes) -> bytes:
    """Return a database whose newest commit is the one before."""
    numbers = [int.from_bytes(content[at : at + 8], "little") for at in (144, PAGE_BYTES + 144)]
    older_at = 144 + PAGE_BYTES * (numbers[1] < numbers[0])
    changed = bytearray(content)
    changed[older_at : older_at + 8] = (max(numbers) + 1).to_bytes(8, "little")
    return bytes(changed)


def judge(site: Site, name: str, what: str) -> str:
    """Run a program on the damaged directory; return in a word how it took it."""
    code, output, errors = site.run(name)
    case = (name, what, code, output[-2000:], errors[-4000:])
    assert code >= 0 and "Traceback" not in errors + output, case
    if name in FOREIGN:
        assert code in (0, 1, 5), case
        return "told"
    if code:
        assert code == 1 and any(each in errors for each in DAMAGED), case
        assert "docs/recovery.md" in errors or "checksum" in errors, case
        return "refused"
    assert (0, output) in site.expected[name], case
    if name in CHANGING:
        code, output, errors = site.run("hashkv")
        assert (code, output) in site.expected["hashkv"] or "checksum" in errors, case
    return "whole"


def attack(site: Site, names: Sequence[str], seed: int, count: int) -> Counter[tuple[str, str]]:
    """Damage the directory so often, each time for another program."""
    chance = random.Random(seed)
    learn(site, names)
    site.put()
    content = site.database.read_bytes()
    outcomes: Counter[tuple[str, str]] = Counter()
    for number in range(count):
        what, damaged = mutated(content, chance)
        site.put(damaged)
        name = names[number % len(names)]
        outcomes[name, judge(site, name, f"{what}, number {number}")] += 1
    return outcomes


def cut_off(site: Site, names: Sequence[str]) -> None:
    site.put()
    content = site.database.read_bytes()
    for name in names:
        for length in (0, len(content) // 2):
            site.put(content[:length])
            assert judge(site, name, f"the first {length} bytes") in ("refused", "told")


def test_a_truncated_database_ends_no_program(site: Site) -> None:
    cut_off(site, ("verify", "hashkv", "hash", "server"))


@pytest.mark.long
def test_a_truncated_database_ends_no_other_program(site: Site) -> None:
    cut_off(site, sorted(PROGRAMS))


@pytest.mark.long
def test_damage_ends_no_program(site: Site) -> None:
    outcomes = attack(site, sorted(PROGRAMS), 0, 5 * len(PROGRAMS))
    assert len({outcome for _, outcome in outcomes}) == 3


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_two_thousand_times_damage_ends_no_program(site: Site) -> None:
    outcomes = attack(site, sorted(PROGRAMS), 1, 2_000)
    assert {name for name, _ in outcomes} == set(PROGRAMS)
