"""`dump metrics`: the same lines as etcd-dump-metrics, of both servers, with TLS as well."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.tools.utl.dumps.metrics import parse_page
from tests.certificates import Authority
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.tools.utl.dumps.conftest import Running
from tests.tools.utl.dumps.runs import dump, dumped, objects, tool

SERVERS: list[Running] = [running_etcd, running_kvorum]


def spaced(text: str) -> str:
    """Return a dump without the empty line that the end of a page becomes in etcd's tool."""
    return re.sub("\n\n+", "\n\n", text).rstrip("\n")


@pytest.mark.parametrize("running", SERVERS)
def test_lines_are_those_of_etcd_dump_metrics(running: Running, tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        url = f"http://{server.address}/metrics"
        # The first run makes calls of its own, which appear on later pages.
        tool("etcd-dump-metrics", "-addr", url)
        theirs = tool("etcd-dump-metrics", "-addr", url)
        ours = dumped("metrics", "-addr", url)
        assert spaced(ours) == spaced(theirs.output)
        assert dumped("metrics", "--addr", f"http://{server.address}") == ours
        version, *metrics = objects("metrics", "--addr", url)
        assert ours.startswith(f"# server version: {version['server_version']}\n")
        assert [each["name"] for each in metrics] == sorted(each["name"] for each in metrics)
        assert ours.count("# type: ") == len(metrics) > 100
        absent = dump("metrics", "--addr", f"http://{server.address}/nothing")
        assert absent.code == 1 and "answers 404" in absent.errors


def test_certificates_are_shown_and_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("server")
    client = authority.issue("client")
    flags = (
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={authority.cert}",
        "--client-cert-auth",
    )
    with running_kvorum(tmp_path / "data", *flags, scheme="https") as running:
        words = ("metrics", "--addr", f"https://{running.address}/metrics")
        shown = ("--cert", client.cert, "--key", client.key)
        assert "# server version" in dumped(*words, "--cacert", authority.cert, *shown)
        assert "# server version" in dumped(*words, "--insecure-skip-tls-verify", *shown)
        for rest, text in (
            (shown, "certificate"),
            (("--cacert", authority.cert), "failed to fetch metrics"),
            (("--cacert", tmp_path / "none", *shown), "no certificates can be read"),
            (("--cert", client.cert), "--cert and --key go together"),
        ):
            found = dump(*words, *rest)
            assert found.code and text in found.errors, found


def test_refusals() -> None:
    found = dump("metrics")
    assert found.code == 1 and 'required flag(s) "addr" not set' in found.errors
    for url in ("127.0.0.1:2379", "file:///etc/passwd", "http://"):
        found = dump("metrics", "--addr", url)
        assert found.code == 128 and url in found.errors


NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(st.text())
def test_any_page_is_read(page: str) -> None:
    parse_page(page)


@given(NAMES, st.text(st.characters(codec="ascii", exclude_characters='"\n\\'), max_size=9))
def test_labels_may_have_blanks(name: str, label: str) -> None:
    page = f'# HELP {name} what it is\n# TYPE {name} gauge\n{name}{{l="{label}"}} 1\n{name} 2\n'
    (metric,) = parse_page(page)
    assert (metric.name, metric.description, metric.type) == (name, "what it is", "gauge")
    assert metric.samples == [f'{name}{{l="{label}"}}', name]
