"""Which edge serves, how it says so, and that a stale extension is an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum.network.edge import RUST, edge_name, source_hash

NATIVE = Path(sys.modules["kvorum.network.edge"].__file__ or "").parent / "_native.abi3.so"
needs_native = pytest.mark.skipif(not NATIVE.exists(), reason="the native edge is not built")


def version(edge: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "KVORUM_EDGE"}
    if edge is not None:
        environment["KVORUM_EDGE"] = edge
    command = [str(Path(sys.executable).parent / "kvorum"), "--version"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_version_names_the_edge() -> None:
    assert f"edge: {edge_name()}" in version(os.environ.get("KVORUM_EDGE")).stdout.splitlines()
    assert "edge: python" in version("python").stdout.splitlines()


@needs_native
def test_the_native_edge_is_taken_where_it_is_built() -> None:
    assert "edge: native" in version(None).stdout.splitlines()
    assert "edge: native" in version("native").stdout.splitlines()


def test_an_edge_nobody_knows_is_an_error() -> None:
    result = version("fast")
    assert result.returncode != 0
    assert "KVORUM_EDGE is 'fast'; expected 'native' or 'python'" in result.stderr


@needs_native
def test_a_stale_extension_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "rust"
    shutil.copytree(RUST, changed, ignore=shutil.ignore_patterns("target"))
    with (changed / "src" / "lib.rs").open("a") as file:
        file.write("\n")
    monkeypatch.delenv("KVORUM_EDGE", raising=False)
    assert source_hash(changed) != source_hash(RUST)
    monkeypatch.setattr("kvorum.network.edge.RUST", changed)
    with pytest.raises(ImportError, match=r"built from other sources .* run 'make setup'"):
        edge_name()


def test_a_missing_extension_is_an_error_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvorum.network.edge.find_spec", lambda _: None)
    monkeypatch.delenv("KVORUM_EDGE", raising=False)
    assert edge_name() == "python"
    monkeypatch.setenv("KVORUM_EDGE", "native")
    with pytest.raises(ImportError, match="not built"):
        edge_name()


@pytest.mark.parametrize("sources", ["src", "storage/src"])
def test_a_new_source_file_changes_the_hash(tmp_path: Path, sources: str) -> None:
    changed = tmp_path / "rust"
    shutil.copytree(RUST, changed, ignore=shutil.ignore_patterns("target"))
    (changed / sources / "more.rs").write_text("//! More.\n")
    assert source_hash(changed) != source_hash(RUST)
