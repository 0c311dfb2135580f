"""Generated flags, variables and files: whether a real etcd starts with them, and what it takes.

etcd is started and ended as soon as it has told its effective configuration, or ends by itself. Our
side is the command itself, up to the start of the server.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.process import main
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.settings.effective import effective
from kvorum.process.settings.environment import variables_of
from kvorum.process.settings.file import KEYS
from kvorum.process.settings.file_keys import type_of
from kvorum.process.settings.flags import BY_NAME
from kvorum.process.settings.rows import FlagRow
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import parse_initial_cluster
from tests.etcd import binary, is_target

STARTING = "starting an etcd server"
OWN = frozenset(
    {"level", "ts", "caller", "msg", "etcd-version", "git-sha", "go-version", "go-os", "go-arch"}
    | {"max-cpu-set", "max-cpu-available", "member-initialized", "initial-corrupt-check"}
)
"""Fields of the line that do not come from the configuration; the last is never true in 3.7."""

EXAMPLES = int(os.environ.get("KVORUM_SEQUENCES", "0")) // 10 or 25
some = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def _needs_the_target() -> None:
    if not is_target():
        pytest.skip("an older etcd has other flags")


@dataclass
class Outcome:
    """What came of a start: an exit code and the reasons, or the configuration in effect."""

    code: int | None = None
    errors: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


def etcd(arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> Outcome:
    process = subprocess.Popen(
        [str(binary("etcd")), *arguments],
        cwd=directory,
        env={"HOME": "/", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    found = Outcome()
    try:
        for line in process.stderr:
            entry = json.loads(line) if line.startswith("{") else {"error": line.rstrip("\n")}
            if entry.get("msg") == STARTING:
                found.fields = {name: entry[name] for name in entry.keys() - OWN}
                return found
            if entry.get("level") == "fatal":
                found.errors.append(entry["msg"])
            if "error" in entry:
                found.errors.append(entry["error"].removeprefix("panic: "))
        found.code = process.wait()
        return found
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def kvorum(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    capture: pytest.CaptureFixture[str],
) -> Outcome:
    found = Outcome()

    def serve(config: Config, _logger: Logger, _arguments: Sequence[str]) -> int:
        cluster = parse_initial_cluster(config.initial_cluster)
        try:
            fields = effective(config, f"{config.data_directory}/member", cluster)
        except ConfigError as error:
            # A start ends with it.
            found.errors.append(str(error))
            return 1
        found.fields = {name: fields[name] for name in fields.keys() - OWN}
        return 0

    before = Path.cwd()
    os.chdir(directory)
    try:
        with patch.dict(os.environ, environment, clear=True), patch.object(main, "_serve", serve):
            code = main.run(arguments)
    finally:
        os.chdir(before)
    lines = capture.readouterr().err.splitlines()
    if not found.fields:
        found.code = code
        for line in lines:
            entry = json.loads(line) if line.startswith("{") else {"error": line}
            if "error" in entry:
                found.errors.append(entry["error"])
    return found


def compare(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    capture: pytest.CaptureFixture[str],
) -> None:
    """Check that both start, with the same configuration, or neither does, for the same reason."""
    # A new directory each time: an etcd that was not ended at once would leave a log there.
    directory = Path(tempfile.mkdtemp(dir=directory))
    theirs = etcd(arguments, environment, directory)
    ours = kvorum(arguments, environment, directory, capture)
    if any(error.startswith("new UniqueURLs should never fail") for error in theirs.errors):
        # A panic, for which the reason is given here.
        theirs.code = 1
    assert theirs.code == ours.code, (arguments, environment, theirs, ours)
    assert theirs.fields == ours.fields, (arguments, environment)
    if theirs.code:
        assert reason(ours.errors[0]) in list(map(reason, theirs.errors)), (theirs, ours)


def reason(text: str) -> str:
    """Return the part of an error that both have; the rest says what to do, or is Go's."""
    for words in (
        "advertise-peer-urls:",
        "KeyFile and CertFile",
        "is shadowed by",
        "unrecognized level",
    ):
        if words in text:
            return words
    text = text.removeprefix("couldn't ").removeprefix("unexpected error setting up cors: ")
    text = text.removeprefix("new UniqueURLs should never fail: ")
    return text.replace("setting up advertise-client-urls:", "advertise-peer-urls:")


TEXTS: Mapping[str, Sequence[str]] = {
    "bool": ["true", "false", "T", "maybe", ""],
    "uint": ["7", "0x10", "1_000", "-1", "x", "18446744073709551616"],
    "uint32": ["7", "0x10", "4294967296"],
    "int": ["7", "-5", "0b11", "1e3", "x"],
    "duration": ["1h30m", "0s", "-5s", "1.5ms", "10", "x"],
    "string": ["a", "b c", "5", "true", ""],
    "list": ["b,a,b", "a", ""],
    "urls": ["http://127.0.0.1:0", "http://127.0.0.1:0,http://127.0.0.2:0", "http://name:1", "x"],
    "origins": ["*", "http://one:1,http://one:1", "http://one", ""],
    "gates": ["LeaseCheckpoint=true", "AllAlpha=true,PriorityRequest=false", "AllBeta=F", "Foo=1"],
}
SPECIAL: Mapping[str, Sequence[str]] = {
    "auto-compaction-mode": ["periodic", "revision", "never", ""],
    "auto-compaction-retention": ["5", "5m", "-5", "x", "", "1h30m"],
    "initial-cluster-state": ["new", "existing", "other", ""],
    "log-level": ["debug", "other"],
    "log-format": ["json", "other"],
    "log-outputs": ["stderr", "/no/such/directory/log"],
    "logger": ["zap", "capnslog", "other"],
    "tls-min-version": ["TLS1.2", "TLS1.3", "", "TLS1.1"],
    "tls-max-version": ["TLS1.2", "TLS1.3", "", "TLS9"],
    "cipher-suites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_OTHER"],
    "v2-deprecation": ["write-only", "gone", "not-yet", "gone,write-only"],
    "heartbeat-interval": ["0", "50", "300", "20000"],
    "election-timeout": ["0", "500", "50000", "50001"],
    "feature-gates": [*TEXTS["gates"], "LeaseCheckpointPersist=true", "A", "CompactHashCheck=x"],
    "listen-peer-urls": [*TEXTS["urls"], "https://127.0.0.1:0"],
    "listen-metrics-urls": ["http://127.0.0.1:0", "http://name:1"],
    "initial-advertise-peer-urls": ["http://10.0.0.1:1", "http://:1", "http://a:1,http://b:2"],
    "advertise-client-urls": ["http://10.0.0.1:1", "http://:1", "unix://a:1", "http://a:1/path"],
    "compact-hash-check-time": ["0s", "-5s", "2m"],
    "name": ["a", "b", "default"],
    "data-dir": ["data"],
    "wal-dir": ["", "wal"],
}
# Left out: flags without effect here, those whose 0 is logged as 0 by etcd but means something
# else, and those that make etcd open or ask for something.
NAMES = [
    *("auto-compaction-mode", "auto-compaction-retention", "initial-cluster-state", "log-level"),
    *("log-format", "log-outputs", "logger", "tls-min-version", "tls-max-version", "max-wals"),
    *("v2-deprecation", "heartbeat-interval", "election-timeout", "feature-gates", "pre-vote"),
    *("listen-peer-urls", "listen-metrics-urls", "initial-advertise-peer-urls", "max-learners"),
    *("advertise-client-urls", "compact-hash-check-time", "name", "wal-dir", "cors", "metrics"),
    *("host-whitelist", "max-snapshots", "max-request-bytes", "max-concurrent-streams"),
    *("quota-backend-bytes", "corrupt-check-time", "cipher-suites"),
    *("initial-election-tick-advance", "initial-cluster-token", "enable-pprof"),
    *("strict-reconfig-check", "snapshot-count", "grpc-keepalive-interval"),
]
flags = st.lists(st.sampled_from(NAMES), max_size=4, unique=True)


def texts_of(name: str) -> Sequence[str]:
    return SPECIAL.get(name) or TEXTS[BY_NAME[name].kind.name]


@st.composite
def chosen(draw: Callable[..., Any], wanted: Any = flags) -> dict[str, str]:
    """Draw flags and texts for them, most of which are good."""
    return {
        name: draw(st.sampled_from([*[texts_of(name)[0]] * 2, *texts_of(name)]))
        for name in draw(wanted)
    }


PORTS = {
    "listen-client-urls": "http://127.0.0.1:0",
    "advertise-client-urls": "http://10.0.0.1:1",
    "listen-peer-urls": "http://127.0.0.1:0",
    "name": "a",
}


@some
@given(drawn=chosen(), in_environment=st.sets(st.sampled_from(NAMES)))
def test_flags_and_variables(
    drawn: dict[str, str],
    in_environment: set[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    all_flags = PORTS | drawn
    environment = {
        variables_of(name)[1]: text for name, text in all_flags.items() if name in in_environment
    }
    arguments = [
        f"--{name}={text}" for name, text in all_flags.items() if name not in in_environment
    ]
    compare(arguments, environment, tmp_path, capfd)


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--name=a"], {"ETCD_NAME": "b"}),
        ([], {"ETCD_NO_SUCH": "b", "ETCD_HEARTBEAT_INTERVAL": "0"}),
        ([], {"ETCD_HEARTBEAT_INTERVAL": "x"}),
        ([], {"ETCD_PRE_VOTE": "x"}),
        ([], {"ETCD_CONFIG_FILE": "/no/such/file"}),
        (["--config-file=/no/such/file"], {"ETCD_NAME": "b", "ETCD_CONFIG_FILE": "/other"}),
        (["--config-file=/"], {}),
        (["--config-file=/no/such/file", "x"], {}),
        (["--version", "x"], {}),
        (["--heartbeat-interval=0", "--logger=other"], {}),
        (["--feature-gates=A", "--feature-gates=B"], {}),
        (["--listen-client-urls=http://127.0.0.1:0", "--heartbeat-interval=1000"], {}),
        (["--listen-client-urls=http://127.0.0.1:0"], {}),
        (["--v2-deprecation=not-yet"], {}),
        (["--max-concurrent-streams=x"], {}),
        (["--log-outputs=default,stderr"], {}),
        (["--cors="], {}),
        (["--name=x", "--listen-metrics-urls=http://name:1"], {}),
    ],
    ids=str,
)
def test_refusals(
    arguments: list[str],
    environment: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    compare(arguments, environment, tmp_path, capfd)
    assert etcd(arguments, environment, tmp_path).code


def test_gates_that_are_given_twice_add_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gates = ["--feature-gates=AllAlpha=true,LeaseCheckpoint=false", "--feature-gates=AllBeta=false"]
    arguments = [f"--{name}={text}" for name, text in PORTS.items()]
    compare([*arguments, *gates], {}, tmp_path, capfd)


@pytest.mark.parametrize("prefix", ["", "KVORUM_", "ETCD_"])
def test_a_file_named_in_each_way(
    prefix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yml"
    path.write_text("name: from-file\n")
    arguments = [f"--config-file={path}"] if not prefix else []
    environment = {f"{prefix}CONFIG_FILE": str(path)} if prefix else {}
    beside = {"ETCD_NAME": "other", "ETCD_HEARTBEAT_INTERVAL": "0"}
    ours = kvorum([*arguments, "--max-wals=3"], environment | beside, tmp_path, capfd)
    assert (ours.fields["name"], ours.fields["heartbeat-interval"]) == ("from-file", "100ms")
    assert ours.fields["max-wals"] == 5


def written(flag: FlagRow, text: str) -> list[str]:
    """Return some ways to write a value in a file, the best first."""
    ways = [text, json.dumps(text), f"[{text}]", f"{{a: {json.dumps(text)}}}", "null"]
    if type_of(flag) == "[]string":
        ways.insert(0, f"[{text}]")
    elif type_of(flag) in ("string", "config.V2DeprecationEnum"):
        ways.insert(0, json.dumps(text))
    return ways


TOP = [name for name in NAMES if name in KEYS]


@some
@given(drawn=chosen(st.lists(st.sampled_from(TOP), max_size=4, unique=True)), data=st.data())
def test_files(
    drawn: dict[str, str],
    data: st.DataObject,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines = []
    for name, text in (PORTS | {"data-dir": "data"} | drawn).items():
        ways = written(BY_NAME[name], text)
        way = data.draw(st.sampled_from([*[ways[0]] * 6, *ways])) if name in drawn else ways[0]
        # CORS is also the name of one of etcd's own variables, which means something else.
        keys = [name, name, name if name == "cors" else name.upper()]
        key = data.draw(st.sampled_from(keys)) if name in drawn else name
        lines.append(f"{key}: {way}")
    path = tmp_path / "file.yml"
    path.write_text("\n".join(lines))
    compare([f"--config-file={path}"], {}, tmp_path, capfd)


@pytest.mark.parametrize(
    "text",
    [
        "client-transport-security: foo",
        "client-transport-security: {cert-file: 1}",
        'client-transport-security: {client-cert-auth: "true"}',
        "client-transport-security: {allowed-cn: a}",
        "client-transport-security:\nPeer-Transport-Security: {auto-tls: 5}",
        "peer-transport-security:",
        "socket-options: {reuse-port: 1}",
        "socket-options: 1",
        "discovery-config: {token: {}}",
        "discovery-config: {client: 5}",
        "discovery-config: {client: {endpoints: x, dial-timeout: 10m}}",
        "discovery-config: {client: {secure: {insecure-transport: 1}, auth: 5}}",
        "discovery-config: {client: {max-recv-bytes: 1.5}}",
        "log-outputs: [stderr, true, {a: b}]",
        "snapshot-count: 1.5e-9",
        "snapshot-count: -1.5e30",
        "snapshot-count: 99999999999999999999999",
        "max-txn-ops: .inf",
        "max-txn-ops: .nan",
        "name: 12:30\nelection-timeout: 010",
        "name: 2001-01-01\npre-vote: y\nelection-timeout: 0o10",
        "name: a\nName: 5",
        "name: a\nname: 5",
        "<<: {name: 5}",
        "name: &a foo\nwal-dir: *a\nelection-timeout: 0",
        "name: !foo x\nwal-dir: !!str 5\nelection-timeout: 0b1",
        "name: !!int x",
        "name: !!bool 1",
        "name: !!float 5",
        "election-timeout: 0\n---\nname: 5",
        "- a",
        "foo",
        "5",
        "name: \x01",
        "a: 1\n\tb: 2",
        "listen-peer-urls: foo\nlisten-client-urls: foo\nfeature-gates: Foo=true",
        "listen-metrics-urls: ','",
        "cors: http://foo",
        "initial-cluster-state: other",
        "no-such-key: [1, 2]\nproxy: on\nelection-timeout: 0",
        "cipher-suites: [A]\ntls-min-version: TLS1.3",
    ],
)
def test_files_that_are_refused(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yml"
    path.write_text(text)
    compare([f"--config-file={path}"], {}, tmp_path, capfd)
    assert etcd([f"--config-file={path}"], {}, tmp_path).code
