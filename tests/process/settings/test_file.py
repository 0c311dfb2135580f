"""The configuration file: every key, its sample, and what is told of mistakes.

How a real etcd takes files is compared in `test_differential.py`.
"""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.process import config_check
from kvorum.process.settings.checks import CHECKS, fill, make_config, mistakes, settle
from kvorum.process.settings.config import ROWS, Config
from kvorum.process.settings.documents import number_text, parse_yaml
from kvorum.process.settings.file import KEYS, read_content
from kvorum.process.settings.file_keys import ABSENT, SECTIONS, place_of, type_of
from kvorum.process.settings.flags import ALL, FlagError, parse_arguments
from kvorum.process.settings.help import flags_text
from kvorum.process.settings.nearest import nearest
from kvorum.process.settings.rows import FlagRow
from kvorum.process.settings.sample import sample
from tests.process.settings.texts import other_text

SAMPLE = Path(__file__).parents[3] / "docs" / "kvorum.conf.yml"
FIELDS = {flag.name: field for field, flag in ROWS.items()}


def nested(place: str, text: str) -> str:
    """Return a file with one key."""
    *sections, name = place.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{'  ' * len(sections)}{name}: {text}"])


def in_file(flag: FlagRow, text: str) -> str:
    """Return a flag's value as a file has it."""
    kind = type_of(flag)
    if kind == "time.Duration":
        return str(round(float(str(flag.kind.parse(text))) * 1_000_000_000))
    if kind == "[]string":
        return f"[{text}]"
    return f"'{text}'" if kind == "string" else text


@pytest.mark.parametrize("place", KEYS)
def test_a_key_means_what_its_flag_means(place: str) -> None:
    flag = KEYS[place]
    text = other_text(flag)
    content = read_content(nested(place, in_file(flag, text)).encode())
    assert (content.problems, content.unknown) == ([], [])
    expected = flag.kind.parse(text)
    found = content.given[flag.name]
    if isinstance(found, tuple) and flag.kind.name != "gates":
        assert sorted(map(str, found)) == sorted(text.split(","))
    else:
        assert found == expected
    if flag.name in FIELDS:
        assert getattr(fill(content.given), FIELDS[flag.name]) != getattr(
            Config(), FIELDS[flag.name]
        )


def test_every_flag_has_a_key_or_is_known_to_have_none() -> None:
    assert {flag.name for flag in ALL if place_of(flag) is None} == ABSENT
    assert {place.rpartition(".")[0] for place in KEYS} - {""} <= SECTIONS.keys()


def test_the_sample_has_every_key_at_its_default() -> None:
    assert SAMPLE.read_text() == sample(), "run: kvorum config sample > docs/kvorum.conf.yml"
    content = read_content(sample().encode())
    assert (content.problems, content.unknown, content.document.repeated) == ([], [], [])
    assert make_config(content.given) == make_config(read_content(b"log-format: json").given)


def test_times_in_a_file_are_in_nanoseconds() -> None:
    content = read_content(b"warning-apply-duration: 1_500_000")
    assert fill(content.given).slow_apply_seconds == 0.0015


def test_what_a_file_leaves_out_is_not_what_a_command_line_leaves_out() -> None:
    config = make_config(read_content(b"listen-client-urls: http://127.0.0.1:1").given)
    assert config.advertise_client_urls == Config().advertise_client_urls
    config = settle(read_content(b"name: a").given)
    assert config.initial_cluster == "a=http://localhost:2380"


def test_urls_may_come_twice_and_are_sorted() -> None:
    content = read_content(b'listen-peer-urls: "http://127.0.0.2:1 , http://127.0.0.1:1"')
    assert list(map(str, fill(content.given).listen_peer_urls)) == [
        "http://127.0.0.1:1",
        "http://127.0.0.2:1",
    ]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_are_written_so_that_they_are_read_again(number: float) -> None:
    assert float(number_text(number)) == float(number)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        parse_yaml(data)


MISTAKEN = """
nme: x
heartbeat-interval: 500
compact-hash-check-time: 0
tls-min-version: TLS9
grpc-keepalive-min-time: 10m
log-outputs: stderr
pre-vote: "true"
name: 5
cert-file: x
raft-read-timeout: 5
experimental-compaction-batch-limit: 5
enable-v2: true
client-transport-security: {cert-fil: x, cert-file: a, cert-file: b}
listen-client-urls: https://0.0.0.0:2379
auto-compaction-retention: 5x
log-level: foo
initial-cluster: b=http://10.0.0.1:2380
---
foo: [
"""


def test_all_mistakes_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.yml"
    path.write_text(MISTAKEN)
    environment = {"ETCD_NAME": "x", "ETCD_CONFIG_FILE": "y", "HOME": "/"}
    assert config_check.run(["check", str(path), "--max-wals=3"], environment) == 1
    told = capsys.readouterr().out.replace(f"{path}: ", "")
    for part in (
        "of type time.Duration\n    grpc-keepalive-min-time has to be in nanoseconds: 600000000000",
        "log-outputs has to be a list: [stderr]",
        "name has to be a text; put it in quotes",
        "pre-vote has to be true or false, without quotes",
        'error: unrecognized level: "foo"',
        "error: --election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval",
        "error: --compact-hash-check-time must be >0 (set to 0s)",
        'error: unexpected TLS version "TLS9"',
        "error: error parsing CompactionRetention",
        "must be provided for client url https://0.0.0.0:2379",
        "error: client-transport-security.cert-file: open b: no such file or directory",
        "in the initial cluster configuration",
        "ignored: nme: unknown key; did you mean name?",
        "ignored: cert-file: belongs at client-transport-security.cert-file",
        "ignored: raft-read-timeout: --raft-read-timeout has no key in a file",
        "ignored: experimental-compaction-batch-limit: unknown key; etcd 3.7 has no experimental "
        "keys any more, see compaction-batch-limit",
        "ignored: enable-v2: unknown key; the v2 API was removed",
        "cert-fil: unknown key; did you mean client-transport-security.cert-file?",
        "ignored: cert-file: given more than once",
        "ignored: everything after the first document",
        "ignored: --max-wals: flags have no effect beside a configuration file",
        "ignored: ETCD_NAME: variables have no effect beside a configuration file",
        "a server would not start with it",
    ):
        assert part in told, told
    assert "ETCD_CONFIG_FILE" not in told


def test_a_good_file_is_told_to_be_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.yml"
    path.write_text("name: a\ndata-dir: d\nlog-outputs: [there.log]\n")
    assert config_check.run(["check", str(path)], {}) == 0
    assert capsys.readouterr().out == f"{path}: no errors; a server would start with it\n"
    assert list(tmp_path.iterdir()) == [path]


def test_how_the_command_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config_check.run([], {}) == 2
    assert config_check.run(["check", str(SAMPLE), "--no-such"], {}) == 2
    assert config_check.run(["check", str(SAMPLE), "other"], {}) == 2
    assert config_check.run(["check", str(tmp_path / "none")], {}) == 1
    capsys.readouterr()
    assert config_check.run(["sample"], {}) == 0
    assert capsys.readouterr().out == sample()


def test_mistakes_are_all_of_what_checks_find() -> None:
    given, _ = parse_arguments(["--heartbeat-interval=0", "--auto-compaction-mode="])
    found = list(mistakes(settle(given), given))
    assert found == [
        "--heartbeat-interval must be >0 (set to 0ms)",
        "undefined auto-compaction-mode",
    ]
    assert len(CHECKS) > len(found)


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [("listen-client-url", "listen-client-urls"), ("datadir", "data-dir"), ("namee", "name")],
)
def test_a_mistyped_flag_is_told_what_was_meant(mistyped: str, meant: str) -> None:
    with pytest.raises(FlagError) as refused:
        parse_arguments([f"--{mistyped}=1"])
    first, second = str(refused.value).splitlines()
    assert first == f"flag provided but not defined: -{mistyped}"
    assert second == f"Did you mean --{meant}?"


def test_what_is_like_nothing_has_no_suggestion() -> None:
    assert nearest("zzzzzz", KEYS) == ""


def test_the_help_has_examples_that_can_be_parsed() -> None:
    examples = flags_text().split("Examples:")[1].replace("\\\n", " ")
    commands = [line.split() for line in examples.splitlines() if line.startswith("    kvorum")]
    assert len(commands) == 5
    for command in commands:
        if "..." not in command:
            given, rest = parse_arguments(command[1:])
            assert rest == []
            settle(given)
