"""Dependencies: locked with hashes, from no particular registry, and credited."""

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CLIENT = tomllib.loads((REPOSITORY / "distributions/client/pyproject.toml").read_text())
LOCKS = {
    name: (REPOSITORY / name).read_text() for name in ("requirements.lock", "requirements-dev.lock")
}


def pinned(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) (?:; .*)?\\$", lock, re.M))


NEEDED, PINNED = map(pinned, LOCKS.values())


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_lock_has_a_hash_of_everything_and_names_no_place(lock: str) -> None:
    entries = [entry for entry in re.split(r"\n(?=\S)", lock.strip()) if not entry.startswith("#")]
    assert all("--hash=sha256:" in entry for entry in entries)
    assert len(pinned(lock)) == len(entries) > 20
    assert "://" not in lock and "--index" not in lock


def test_the_locks_are_of_what_the_project_asks_for() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    for lock, requirements in ((NEEDED, extras["build"]), (PINNED, extras["dev"])):
        for requirement in requirements:
            name, _, version = requirement.partition(";")[0].partition("==")
            assert lock[normalized(name.partition("[")[0])] == version, "run 'make lock'"
    for requirement in (
        *PROJECT["tool"]["kvorum"]["dependencies"],
        *CLIENT["project"]["dependencies"],
    ):
        name, _, floor = requirement.partition(">=")
        found = tuple(map(int, NEEDED[normalized(name)].split(".")))
        assert found >= tuple(map(int, floor.split("."))), "run 'make lock'"


def test_tests_run_with_what_users_get() -> None:
    assert NEEDED.items() < PINNED.items(), "run 'make lock'"


def test_what_builds_the_project_is_locked_too() -> None:
    for requirement in PROJECT["build-system"]["requires"]:
        assert normalized(re.split("[=>]", requirement)[0]) in NEEDED


def test_the_crates_in_the_edge_are_credited() -> None:
    notices = (REPOSITORY / "rust" / "NOTICES.txt").read_text()
    credited = set(re.findall(r"^([\w-]+) (\d\S*) \(", notices, re.M))
    locked = tomllib.loads((REPOSITORY / "rust" / "Cargo.lock").read_text())["package"]
    versions = {(each["name"], each["version"]) for each in locked}
    assert credited <= versions, "run 'make notices'"
    for crate in (REPOSITORY / "rust", REPOSITORY / "rust" / "storage"):
        dependencies = tomllib.loads((crate / "Cargo.toml").read_text())["dependencies"]
        of_others = {name for name, one in dependencies.items() if "path" not in one}
        assert of_others <= {name for name, _ in credited}, "run 'make notices'"
    assert "rust/NOTICES.txt" in PROJECT["project"]["license-files"]
