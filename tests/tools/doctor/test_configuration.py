"""Configuration files, by themselves and beside a directory; directories beside each other."""

import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from tests.certificates import Authority
from tests.kvorum import running_kvorum
from tests.tools.doctor.examining import of_directories

FINE = """
    name: default
    data-dir: {data}
    heartbeat-interval: 100
    election-timeout: 1000
"""
USUAL = {"configuration-doubtful"}
"""The name `default` is not recommended."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("stopped") / "data"
    with running_kvorum(data, "--unsafe-no-fsync"):
        pass
    return data


def written(path: Path, text: str, **values: object) -> tuple[str, ...]:
    path.write_text(dedent(text.format(**values)))
    return (f"--config-file={path}",)


@pytest.mark.long
def test_a_file_that_is_fine_and_its_directory(tmp_path: Path, stopped: Path) -> None:
    flags = written(tmp_path / "file.yml", FINE, data=stopped)
    assert of_directories(flags=flags).keys() == USUAL
    shutil.copytree(stopped, tmp_path / "copy")
    (tmp_path / "copy" / "member" / "wal" / "tmp.x").write_bytes(b"")
    flags = written(tmp_path / "file.yml", FINE, data=tmp_path / "copy")
    assert of_directories(flags=flags).keys() == USUAL | {"leftovers"}


@pytest.mark.parametrize(
    "text", ["listen-client-urls: nonsense", "heartbeat-interval: 5000", "name: [", "data-dir: 5"]
)
def test_a_file_that_no_server_starts_with(tmp_path: Path, text: str) -> None:
    found = of_directories(flags=written(tmp_path / "file.yml", text))
    assert found.keys() - USUAL == {"configuration-invalid"}


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    found = of_directories(flags=(f"--config-file={tmp_path / 'none'}",))
    assert found.keys() == {"configuration-invalid"}
    assert "no such file" in found["configuration-invalid"][0]["what"]


def test_what_has_no_effect_or_may_not_be_meant(tmp_path: Path) -> None:
    text = "name: m1\ndata-dir: {data}\nno-such-key: 1\nquota-backend-bytes: 99999999999\n"
    found = of_directories(flags=written(tmp_path / "file.yml", text, data=tmp_path / "none"))
    assert found.keys() == {"configuration-doubtful"}
    told = " ".join(each["what"] for each in found["configuration-doubtful"])
    assert "no-such-key" in told and "quota exceeds" in told


def test_an_election_timeout_that_is_short(tmp_path: Path) -> None:
    text = FINE.replace("1000", "600")
    found = of_directories(flags=written(tmp_path / "file.yml", text, data=tmp_path / "none"))
    assert found.keys() == USUAL | {"election-timeout-short"}


def test_the_file_of_another_member(tmp_path: Path, stopped: Path) -> None:
    text = FINE.replace("name: default", "name: m7")
    found = of_directories(flags=written(tmp_path / "file.yml", text, data=stopped))
    assert found.keys() == {"configuration-of-another-member"}
    evidence = found["configuration-of-another-member"][0]["evidence"]
    assert evidence["name_in_file"] == "m7" and evidence["name_in_directory"] == "default"


def test_certificates_that_a_file_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.issue("server", days=-1)
    text = (
        FINE
        + """
    client-transport-security:
      cert-file: {cert}
      key-file: {key}
      trusted-ca-file: {ca}
    """
    )
    values = {"cert": pair.cert, "key": pair.key, "ca": authority.cert, "data": tmp_path / "none"}
    found = of_directories(flags=written(tmp_path / "file.yml", text, **values))
    assert found["certificate-expired"][0]["subject"] == str(pair.cert)
    assert found["certificate-ends-soon"][0]["subject"] == str(authority.cert)


@pytest.mark.long
def test_directories_that_do_not_belong_together(tmp_path: Path, stopped: Path) -> None:
    shutil.copytree(stopped, tmp_path / "copy")
    found = of_directories(stopped, tmp_path / "copy")
    assert found.keys() == {"copies-of-one-member", "recover-from"}
    with running_kvorum(tmp_path / "other", "--unsafe-no-fsync", "--initial-cluster-token=other"):
        pass
    found = of_directories(stopped, tmp_path / "other")
    assert found.keys() == {"clusters-differ"}
