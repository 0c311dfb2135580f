"""The files for containers and systemd fit the server: its settings, its lock, its shutdown."""

import json
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvorum.process.settings.checks import check, settle
from kvorum.process.settings.config import Config
from kvorum.process.settings.environment import from_environment
from kvorum.process.settings.flags import parse_arguments
from kvorum.process.settings.member import member_config
from kvorum.server.shutdown import CLOSE_SECONDS_MAX
from tests.deploy.pods import CHART

REPOSITORY = CHART.parents[2]
CONTAINER = REPOSITORY / "deploy" / "container"
SYSTEMD = REPOSITORY / "deploy" / "systemd"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
UNIT = (SYSTEMD / "kvorum.service").read_text()


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def runtime() -> set[str]:
    """Return the packages that an installed server needs, by the metadata of what is here."""
    server = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["kvorum"]
    client = tomllib.loads((REPOSITORY / "distributions/client/pyproject.toml").read_text())
    asked = (*server["dependencies"], *client["project"]["dependencies"])
    names = [re.split("[^\\w.-]", each)[0] for each in asked]
    found: set[str] = set()
    while names:
        name = normalized(names.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            pytest.fail(f"{name} is not installed")
        for each in needed:
            requirement, _, marker = each.partition(";")
            if "extra" not in marker and "python_version <" not in marker:
                names += re.findall(r"^[\w.-]+", requirement)
    return found


def config_of(variables: dict[str, str], *flags: str) -> Config:
    """Return the configuration of a server; fail if it would refuse or not know a setting."""
    given, rest = parse_arguments(flags)
    assert rest == []
    found, warnings = from_environment(variables, given)
    assert warnings == []
    given |= found
    config = settle(given)
    check(config, given)
    return config


def unit(key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT, re.M)
    return str(value)


def test_an_image_has_what_a_server_needs_and_nothing_else() -> None:
    (removed,) = re.findall(r"pip uninstall --yes (ast.*)", DOCKERFILE)
    lock = (REPOSITORY / "requirements.lock").read_text()
    locked = {normalized(each) for each in re.findall(r"^([\w.-]+)==", lock, re.M)}
    assert locked - set(removed.split()) == locked & runtime()
    assert set(removed.split()) <= locked


def test_an_image_without_arguments_serves_beyond_itself() -> None:
    (command,) = re.findall(r"^CMD (.*)$", DOCKERFILE, re.M)
    program, *flags = json.loads(command)
    assert program == "kvorum"
    config = config_of({}, *flags)
    assert [url.address for url in config.listen_client_urls] == ["0.0.0.0:2379"]
    assert [str(url) for url in config.advertise_client_urls] == ["http://127.0.0.1:2379"]


def test_a_build_gets_the_files_that_it_needs() -> None:
    lines = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    given = {line[1:] for line in lines if line.startswith("!")}
    for name in given - {"dist/*.whl"}:
        assert (REPOSITORY / name).exists(), name
    assert {"setup.py", "pyproject.toml", "src", "bin", "rust", "requirements.lock"} <= given


def test_members_of_compose_know_each_other() -> None:
    configs = {}
    for name, service in COMPOSE["services"].items():
        assert service["command"] == ["kvorum"] and service["read_only"] is True
        assert service["volumes"] == [f"{name}:/var/lib/kvorum"] and name in COMPOSE["volumes"]
        configs[name] = config_of(service["environment"])
    assert len(configs) == 3
    assert len({config.initial_cluster for config in configs.values()}) == 1
    for name, config in configs.items():
        assert config.name == name
        assert f"{name}={config.advertise_peer_urls[0]}" in config.initial_cluster


def test_a_member_under_systemd_has_a_place_for_its_data() -> None:
    lines = (SYSTEMD / "kvorum.env").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    config = config_of({name: value for name, _, value in pairs})
    assert Path(config.data_directory).parent == Path("/var/lib", unit("StateDirectory"))
    assert f"{config.name}={config.advertise_peer_urls[0]}" in config.initial_cluster


def test_nobody_kills_a_member_that_shuts_down() -> None:
    config = settle({})
    seconds = member_config(config, "data").request_seconds_max + 2 * CLOSE_SECONDS_MAX
    assert float(unit("TimeoutStopSec")) > seconds
    for service in COMPOSE["services"].values():
        assert float(service["stop_grace_period"].removesuffix("s")) > seconds
    stateful = (CHART / "templates" / "statefulset.yaml").read_text()
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", stateful)
    assert float(grace) > seconds


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    path = tmp_path / "kvorum.service"
    path.write_text(UNIT.replace("ExecStart=/opt/kvorum/bin/kvorum", "ExecStart=/bin/true"))
    done = subprocess.run(
        [program, "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
