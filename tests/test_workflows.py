"""Workflows, forms and hooks: they run make targets and known actions, with few permissions."""

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvorum

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text())
    for path in sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
}
FORMS = sorted((REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
PYTHON = "Programming Language :: Python :: "

ACTIONS = {
    "actions/attest@v4",
    "actions/checkout@v5",
    "actions/download-artifact@v8",
    "actions/setup-go@v6",
    "actions/setup-python@v6",
    "actions/upload-artifact@v7",
    "docker/build-push-action@v7",
    "docker/login-action@v4",
    "docker/setup-buildx-action@v4",
    "docker/setup-qemu-action@v4",
    "pypa/cibuildwheel@v4.3",
    "pypa/gh-action-pypi-publish@release/v1",
}
# A container has no make at first.
COMMANDS = {"apk add --no-cache make"}
# Text of others, such as a branch's name, never becomes part of a command; a number may.
COMMAND = re.compile(r"make ([a-z-]+)(?: [A-Z_]+=(?:[\w.]|\$\{\{ github\.run_number \}\})+)*")

READ = {"contents": "read"}
SIGN = {"attestations": "write", "id-token": "write"}
PERMISSIONS = {
    ("release.yml", "publish"): SIGN,
    ("release.yml", "image"): {**READ, **SIGN, "packages": "write"},
}
"""The permissions of the jobs that need more than to read the repository."""


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for workflow, content in WORKFLOWS.items():
        for name, job in content["jobs"].items():
            yield workflow, name, job


JOBS = [pytest.param(*each, id=f"{each[0]}:{each[1]}") for each in jobs()]


def expand(line: str, matrix: dict[str, list[str]]) -> Iterator[str]:
    """Yield the line as each job of the matrix runs it."""
    for values in product(*matrix.values()):
        text = line
        for key, value in zip(matrix, values, strict=True):
            text = text.replace(f"${{{{ matrix.{key} }}}}", value)
        yield text


@pytest.mark.parametrize("job", [pytest.param(each.values[2], id=each.id) for each in JOBS])
def test_a_job_runs_targets_and_known_actions(job: dict[str, Any]) -> None:
    if "uses" in job:
        called = REPOSITORY / job["uses"]
        assert called.name in WORKFLOWS and "workflow_call" in WORKFLOWS[called.name][True]
        return
    matrix = job.get("strategy", {}).get("matrix", {})
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert step["uses"] in ACTIONS
            assert (REPOSITORY / step.get("with", {}).get("file", "")).exists()
            continue
        for line in expand(step["run"], matrix):
            command = COMMAND.fullmatch(line)
            assert line in COMMANDS or (command and command[1] in TARGETS), line


@pytest.mark.parametrize(("workflow", "name", "job"), JOBS)
def test_a_job_may_do_no_more_than_is_listed(workflow: str, name: str, job: dict[str, Any]) -> None:
    granted = job.get("permissions", WORKFLOWS[workflow]["permissions"])
    assert granted == PERMISSIONS.get((workflow, name), READ)
    # The host's own token, with the permissions above, is the only secret.
    assert "secrets" not in str(job)
    assert "uses" in job or job["timeout-minutes"] <= 180


def test_nothing_is_listed_that_no_job_uses() -> None:
    steps = [step for *_, job in jobs() for step in job.get("steps", ())]
    assert {step["uses"] for step in steps if "uses" in step} == ACTIONS
    assert {step.get("run") for step in steps} > COMMANDS
    assert {(workflow, name) for workflow, name, _ in jobs()} > set(PERMISSIONS)


def test_every_supported_python_is_tested_on_every_push() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    workflow = WORKFLOWS["test.yml"]
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert [f"{PYTHON}{version}" for version in versions] == [
        each for each in project["classifiers"] if each.startswith(f"{PYTHON}3.")
    ]
    assert project["requires-python"] == f">={versions[0]}"
    # YAML 1.1 reads the key `on` as true.
    assert "push" in workflow[True]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_can_be_read_by_the_host(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_every_hook_before_a_commit_runs_a_tool_of_the_checkout() -> None:
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    makefile = (REPOSITORY / "Makefile").read_text()
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        command = hook["entry"].replace(".venv/bin", "$(BIN)").removesuffix(" --force-exclude")
        assert command in makefile


def test_the_newest_version_in_the_changelog_is_this_one() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\d+\.\d+\.\d+) - (?:Unreleased|\d{4}-\d\d-\d\d)$", changelog, re.M)
    assert versions[0] == kvorum.__version__
