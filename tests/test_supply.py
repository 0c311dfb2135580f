"""Dependencies: locked with hashes, from no particular registry, and credited; who tests them."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
LOCKS = {
    name: (REPOSITORY / name).read_text() for name in ("requirements.lock", "requirements-dev.lock")
}


def pinned(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", lock, re.M))


NEEDED, PINNED = map(pinned, LOCKS.values())
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
COMMAND = re.compile(r"make ([a-z-]+)(?: [A-Z_]+=(?:\S|\$\{\{.+?\}\})+)*")
PYTHON = "Programming Language :: Python :: "


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
            name, _, version = requirement.partition("==")
            assert lock[normalized(name.partition("[")[0])] == version, "run 'make lock'"
    for requirement in project["dependencies"]:
        name, _, floor = requirement.partition(">=")
        found = tuple(map(int, NEEDED[normalized(name)].split(".")))
        assert found >= tuple(map(int, floor.split("."))), "run 'make lock'"


def test_tests_run_with_what_users_get() -> None:
    assert NEEDED.items() < PINNED.items(), "run 'make lock'"


def test_what_builds_the_project_is_locked_too() -> None:
    for requirement in PROJECT["build-system"]["requires"]:
        assert normalized(re.split("[=>]", requirement)[0]) in NEEDED


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_nothing_but_targets(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        matrix = job["strategy"]["matrix"]
        lines = [step["run"] for step in job["steps"] if "run" in step]
        for key, values in matrix.items():
            place = f"${{{{ matrix.{key} }}}}"
            lines = [line.replace(place, value) for line in lines for value in values]
        assert lines
        for line in lines:
            command = COMMAND.fullmatch(line)
            assert command is not None and command[1] in targets, line


def test_every_supported_python_is_tested_on_every_push() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/test.yml").read_text())
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    classifiers = PROJECT["project"]["classifiers"]
    assert [f"{PYTHON}{version}" for version in versions] == [
        each for each in classifiers if each.startswith(f"{PYTHON}3.")
    ]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    # YAML 1.1 reads the key `on` as true.
    assert "push" in workflow[True]


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
