"""Each file is in one distribution, all have one version, and a wheel's tag says what is in it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

from kvorum import __version__
from tests.distributions.building import CLIENT, PROJECTS, REPOSITORY, build_script, load

SERVER = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_each_package_is_in_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    script = build_script(monkeypatch)
    find = CLIENT["tool"]["setuptools"]["packages"]["find"]
    client = find_packages(str(REPOSITORY / "src"), include=find["include"])
    server = script.packages(is_release=True)
    assert {"kvorum", "kvorum.client.sync", "kvorum.api.pb.mvccpb"} <= set(client)
    assert {"kvorum.compiled", "kvorum.embed", "kvorum.testing"} <= set(server)
    assert not set(client) & set(server)
    assert sorted(client + server) == sorted(script.packages(is_release=False))
    assert not any("planted" in each for each in server)


def test_a_release_requires_its_client_and_a_checkout_what_the_client_requires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = build_script(monkeypatch)
    client = set(CLIENT["project"]["dependencies"])
    release, checkout = (set(script.requirements(is_release=each)) for each in (True, False))
    assert release - checkout == {f"kvorum-client=={__version__}"}
    assert checkout - release == client


def test_what_is_built_to_be_published_is_a_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = build_script(monkeypatch)
    monkeypatch.delenv("KVORUM_RELEASE", raising=False)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    assert not script.is_release()
    with monkeypatch.context() as patch:
        patch.setattr("sys.argv", ["setup.py", "sdist"])
        assert script.is_release()
    with monkeypatch.context() as patch:
        patch.setenv("KVORUM_RELEASE", "1")
        assert script.is_release()
    (tmp_path / "PKG-INFO").touch()
    assert script.is_release()
    assert SERVER["tool"]["cibuildwheel"]["environment"]["KVORUM_RELEASE"] == "1"


def test_all_distributions_have_one_version() -> None:
    etcd = PROJECTS["etcd"]["project"]
    assert etcd["version"] == __version__
    assert etcd["dependencies"] == [f"kvorum=={__version__}"]
    assert CLIENT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "kvorum.__version__"}
    for crate in ("rust", "rust/storage"):
        cargo = tomllib.loads((REPOSITORY / crate / "Cargo.toml").read_text())
        assert cargo["package"]["version"] == __version__
    chart = (REPOSITORY / "deploy/helm/kvorum/Chart.yaml").read_text()
    assert f'appVersion: "{__version__}"' in chart.splitlines()


def test_all_distributions_are_for_the_same_pythons() -> None:
    for project in PROJECTS.values():
        for key in ("requires-python", "license", "authors"):
            assert project["project"][key] == SERVER["project"][key]
        ours, theirs = (
            [each for each in one["project"]["classifiers"] if ":: 3" in each or "Status" in each]
            for one in (project, SERVER)
        )
        assert ours == theirs


@pytest.mark.parametrize("edge", ["", "native", "python"])
@pytest.mark.parametrize("core", ["", "0", "1"])
def test_only_a_wheel_without_native_parts_is_for_every_platform(
    monkeypatch: pytest.MonkeyPatch, edge: str, core: str
) -> None:
    script = build_script(monkeypatch, edge, core)
    assert script.BinaryDistribution().has_ext_modules() is ((edge, core) != ("python", "0"))


def test_a_build_warns_of_what_it_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = build_script(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    edge, core = script.parts_left_out(tmp_path)
    assert "there is no cargo" in edge and "40 times" in edge and "KVORUM_EDGE=python" in edge
    assert "no C compiler" in core and "twice the time" in core and "KVORUM_COMPILED=0" in core
    for name in ("network/edge/_native.abi3.so", "compiled/0123/core__mypyc.cpython-311.so"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert list(script.parts_left_out(tmp_path)) == []


def test_a_build_does_not_warn_of_what_somebody_chose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = build_script(monkeypatch, "python", "0")
    assert list(script.parts_left_out(tmp_path)) == []


def test_the_description_of_a_release_has_no_link_into_the_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = build_script(monkeypatch).description()
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert "docs/compatibility.md" in text
    for project in PROJECTS:
        assert "](" not in (REPOSITORY / "distributions" / project / "README.md").read_text()


def test_the_source_archive_has_every_file_of_the_checkout() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    rules = [line.split() for line in (REPOSITORY / "MANIFEST.in").read_text().splitlines()]
    grafted = {rule[1] for rule in rules if rule[0] == "graft"}
    patterns = [each for rule in rules if rule[0] == "include" for each in rule[1:]]
    # The builder adds these by itself.
    patterns += ["pyproject.toml", "setup.py", "MANIFEST.in"]
    left_out = [
        name
        for name in listed.stdout.splitlines()
        if name.split("/")[0] not in grafted and not any(map(Path(name).match, patterns))
    ]
    assert left_out == []


def test_commands_with_etcds_names_print_versions_in_etcds_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = load("distributions/etcd/kvorum_etcd.py")
    for arguments in (["-version"], ["--version"], ["-name", "one", "-version=true"]):
        monkeypatch.setattr("sys.argv", ["etcd", *arguments])
        commands.etcd()
        lines = capsys.readouterr().out.splitlines()
        names = ["etcd Version", "Git SHA", "Go Version", "Go OS/Arch"]
        assert [line.partition(": ")[0] for line in lines] == names
        assert re.fullmatch(r"etcd Version: 3\.7\.\d+", lines[0])
        assert lines[1].endswith(f"(Kvorum {__version__})")
    for name in ("etcdctl", "etcdutl"):
        monkeypatch.setattr("sys.argv", [name, "-w", "json", "version"])
        getattr(commands, name)()
        assert re.fullmatch(
            rf"{name} version: 3\.7\.\d+\nAPI version: 3\.7\n", capsys.readouterr().out
        )
