"""Dependencies: locked with hashes, from no particular registry, and credited."""

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
LOCK = (REPOSITORY / "requirements-dev.lock").read_text()
PINNED = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", LOCK, re.M))


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_has_a_hash_of_everything_and_names_no_place() -> None:
    entries = [entry for entry in re.split(r"\n(?=\S)", LOCK.strip()) if not entry.startswith("#")]
    assert all("--hash=sha256:" in entry for entry in entries)
    assert len(PINNED) == len(entries) > 20
    assert "://" not in LOCK and "--index" not in LOCK


def test_the_lock_is_of_what_the_project_asks_for() -> None:
    project = PROJECT["project"]
    for requirement in project["optional-dependencies"]["dev"]:
        name, _, version = requirement.partition("==")
        assert PINNED[normalized(name.partition("[")[0])] == version, "run 'make lock'"
    for requirement in project["dependencies"]:
        name, _, floor = requirement.partition(">=")
        found = tuple(map(int, PINNED[normalized(name)].split(".")))
        assert found >= tuple(map(int, floor.split("."))), "run 'make lock'"


def test_what_builds_the_project_is_locked_too() -> None:
    for requirement in PROJECT["build-system"]["requires"]:
        assert normalized(re.split("[=>]", requirement)[0]) in PINNED


def test_the_crates_in_the_edge_are_credited() -> None:
    notices = (REPOSITORY / "rust" / "NOTICES.txt").read_text()
    credited = set(re.findall(r"^([\w-]+) (\d\S*) \(", notices, re.M))
    locked = tomllib.loads((REPOSITORY / "rust" / "Cargo.lock").read_text())["package"]
    versions = {(each["name"], each["version"]) for each in locked}
    assert credited <= versions, "run 'make notices'"
    manifest = tomllib.loads((REPOSITORY / "rust" / "Cargo.toml").read_text())
    assert set(manifest["dependencies"]) <= {name for name, _ in credited}, "run 'make notices'"
    assert "rust/NOTICES.txt" in PROJECT["project"]["license-files"]
