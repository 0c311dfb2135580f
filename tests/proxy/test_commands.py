"""The command lines of the proxies against those of a real etcd: flags, refusals, exit codes."""

import re
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from kvorum.process import main
from kvorum.process.proxies import ROOT
from kvorum.tools.cli.parsing import parse
from tests.certificates import Authority
from tests.etcd import binary, is_target
from tests.ports import held_port
from tests.proxy.processes import PROGRAM, run, run_both
from tools.procfile import commands

REPOSITORY = Path(__file__).parents[2]

COMMANDS = ("gateway", "grpc-proxy")
FLAG = re.compile(r"^ +(?:-h, )?--([\w-]+)(?: (\w+))? {2,}.*?(?:\(default (\S+)\))?$", re.M)
# Not only whole lines: another thread may log before the end of a line that is printed.
LOGGED = re.compile(r'\{"level":"(?:info|warn)".*\n?')
FATAL = re.compile(r'^\{"level":"fatal".*?"msg":"([^"]*)","error":"(.*?[^\\])"[,}].*\n', re.M)

Ended = tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]
"""How our command line ended, and how etcd's did."""
Both = Callable[..., Ended]

pytestmark = pytest.mark.skipif(not is_target(), reason="the flags are those of 3.7")


@pytest.fixture
def both(capfd: pytest.CaptureFixture[str]) -> Both:
    """Run a command line with etcd, and meanwhile with ours in this process, which is quicker."""

    def run_both(*arguments: str) -> Ended:
        with ThreadPoolExecutor(1) as thread:
            theirs = thread.submit(run, binary("etcd"), *arguments)
            code = main.run(arguments)
            out, err = capfd.readouterr()
            return subprocess.CompletedProcess(arguments, code, out, err), theirs.result()

    return run_both


def flags(text: str) -> set[tuple[str, ...]]:
    """Return the names, kinds and defaults of the flags in a help text."""
    return set(FLAG.findall(text))


def refusal(text: str) -> str:
    """Return what a start was refused with, without what was logged before."""
    text = LOGGED.sub("", text)
    return FATAL.sub(r"\1: \2", text).strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_are_those_of_etcd(command: str) -> None:
    ours, theirs = run_both(command, "start", "--help")
    assert ours.returncode == theirs.returncode == 0
    assert flags(ours.stdout) == flags(theirs.stdout)
    assert len(flags(ours.stdout)) > 7
    assert ours.stderr == theirs.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", ["", "--help", "-h", "foo", "help", "help start", "sta"])
def test_a_command_without_start_shows_its_help(command: str, words: str, both: Both) -> None:
    ours, theirs = both(command, *words.split())
    assert ours.returncode == theirs.returncode == 0
    for text, program in ((ours.stdout, "kvorum"), (theirs.stdout, "etcd")):
        assert f"Usage:\n  {program} {command} [command]\n\nAvailable Commands:\n  start" in text
    assert ours.stderr == theirs.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "words",
    [
        "start --bad",
        "start -x",
        "start --endpoints",
        "start --insecure-discovery=maybe",
        "--bad",
        "--version",
        "start extra --bad=3",
        "start ---listen-addr",
    ],
)
def test_a_command_line_that_cannot_be_read(command: str, words: str, both: Both) -> None:
    ours, theirs = both(command, *words.split())
    assert ours.returncode == theirs.returncode == 1
    assert ours.stdout == theirs.stdout == ""
    first, usage = "".join(ours.stderr.splitlines(True)[:1]), "Usage:\n  kvorum"
    assert first == "".join(theirs.stderr.splitlines(True)[:1])
    assert usage in ours.stderr
    # It is told again below the usage.
    assert ours.stderr.splitlines()[-1] == theirs.stderr.splitlines()[-1]
    assert f"Error: {ours.stderr.splitlines()[-1]}\n" == first


@pytest.mark.parametrize(
    "words",
    [
        "gateway start --retry-delay=x",
        "gateway start --retry-delay=5",
        "grpc-proxy start --max-concurrent-streams=-1",
        "grpc-proxy start --max-concurrent-streams=4294967296",
        "grpc-proxy start --resolver-ttl=x",
        "grpc-proxy start --max-send-bytes=99999999999999999999",
        "grpc-proxy start --self-signed-cert-validity=-1",
        "grpc-proxy start --dial-keepalive-time=1y",
        "grpc-proxy start --debug=2",
    ],
)
def test_a_value_that_cannot_be_read(words: str, both: Both) -> None:
    ours, theirs = both(*words.split())
    assert ours.returncode == theirs.returncode == 1
    assert ours.stderr.splitlines()[0] == theirs.stderr.splitlines()[0]


@pytest.mark.parametrize(
    "words",
    [
        "--endpoints=x",
        "--endpoints=",
        "--endpoints=127.0.0.1:1,,127.0.0.1:2",
        "--endpoints=http://a",
        "--endpoints=::1:2379",
        "--endpoints=http://[::1:22",
        "--endpoints=a:1:2",
        "--endpoints=:2379",
        "--endpoints=no.host.invalid:2379",
        "--endpoints=127.0.0.1:23790",
        "--listen-addr=localhost:23790 --endpoints=127.0.0.1:23790",
        "--listen-addr=x",
        "--listen-addr=",
        "--listen-addr=:23790",
        "--listen-addr=no.host.invalid:23790",
        "--listen-addr=x --endpoints=y",
        "--listen-addr=x --endpoints=",
    ],
)
def test_a_gateway_that_is_refused(words: str, both: Both) -> None:
    ours, theirs = both("gateway", "start", *words.split())
    assert ours.returncode == theirs.returncode == 1
    assert ours.stdout.strip("\n") == theirs.stdout.strip("\n")
    assert ours.stdout
    assert refusal(ours.stderr) == refusal(theirs.stderr) == ""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:-1", "192.0.2.1:2379", "127.0.0.1:no-such-service"]
)
def test_an_address_that_cannot_be_listened_at(command: str, address: str, both: Both) -> None:
    ours, theirs = both(command, "start", f"--listen-addr={address}")
    assert ours.returncode == theirs.returncode == 1
    assert refusal(theirs.stderr)
    assert refusal(ours.stderr).startswith(refusal(theirs.stderr))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_address_in_use(command: str, both: Both) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ours, theirs = both(command, "start", f"--listen-addr={address}")
    assert ours.returncode == theirs.returncode == 1
    assert refusal(theirs.stderr) == f"listen tcp {address}: bind: address already in use"
    assert refusal(ours.stderr).startswith(refusal(theirs.stderr))


@pytest.mark.parametrize(
    "words",
    [
        "--endpoints=127.0.0.1:abc",
        "--endpoints=127.0.0.1:",
        "--endpoints=127.0.0.1:99999",
        "--endpoints=127.0.0.1:-5",
    ],
)
def test_a_port_that_is_none_is_refused(words: str) -> None:
    """Etcd would forward to port 0."""
    ours = run(PROGRAM, "gateway", "start", words)
    assert ours.returncode == 1
    assert ours.stdout == f'error parsing endpoint "{words.partition("=")[2]}"\n'


@pytest.mark.parametrize(
    "words",
    [
        "--resolver-prefix=p",
        "--resolver-ttl=5",
        "--resolver-prefix=p --resolver-ttl=-1",
        "--resolver-prefix=p --resolver-ttl=5 --advertise-client-url=",
        "--auto-tls --self-signed-cert-validity=0",
        "--tls-min-version=TLS1.1",
        "--tls-max-version=TLS9",
        "--tls-min-version=TLS1.3 --tls-max-version=TLS1.2",
        "--tls-min-version=TLS1.3 --listen-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "--resolver-ttl=5 --tls-min-version=x",
        "--auto-tls --self-signed-cert-validity=0 --tls-min-version=x",
        "--tls-min-version=x --listen-addr=y",
        "--listen-addr=x --endpoints=",
        "--listen-addr=127.0.0.1:0 --endpoints=",
        "--listen-addr=127.0.0.1:0 --cert=/no/file",
        "--listen-addr=127.0.0.1:0 --key=/no/file",
        "--listen-addr=127.0.0.1:0 --cert=/no/file --key=/no/file",
        "--listen-addr=127.0.0.1:0 --cacert=/no/file",
        "--listen-addr=127.0.0.1:0 --max-send-bytes=10 --max-recv-bytes=5",
        "--listen-addr=127.0.0.1:0 --metrics-addr=https://127.0.0.1:23791",
        "--listen-addr=127.0.0.1:0 --metrics-addr=%zz",
    ],
)
def test_a_proxy_that_is_refused(words: str, tmp_path: Path, both: Both) -> None:
    arguments = [*words.split(), f"--data-dir={tmp_path}"]
    ours, theirs = both("grpc-proxy", "start", *arguments)
    assert ours.returncode == theirs.returncode == 1
    assert ours.stdout == theirs.stdout == ""
    assert refusal(theirs.stderr)
    assert refusal(ours.stderr).startswith(refusal(theirs.stderr))


def test_keys_owned_by_a_proxy_are_refused() -> None:
    """Etcd's proxy would own keys; ours would let writes pass those who do."""
    ours = run(PROGRAM, "grpc-proxy", "start", "--experimental-leasing-prefix=l")
    assert ours.returncode == 1
    assert '--experimental-leasing-prefix="l" is not supported' in ours.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--cert-file=/no/file", "KeyFile and CertFile must both be present"),
        ("--key-file=/no/file", "KeyFile and CertFile must both be present"),
        ("--cert-file=/no/file --key-file=/no/file", "open /no/file: no such file or directory"),
        ("--trusted-ca-file=/no/file", "KeyFile and CertFile are not presented"),
        ("--trusted-ca-file=/no/file --auto-tls", "KeyFile and CertFile are not presented"),
        ("--cert-file=/no/file --auto-tls", "KeyFile and CertFile must both be present"),
    ],
)
def test_certificates_that_cannot_be_shown_to_clients(words: str, reason: str, both: Both) -> None:
    ours, theirs = both("grpc-proxy", "start", "--listen-addr=127.0.0.1:0", *words.split())
    assert ours.returncode == theirs.returncode == 1
    for each in (ours, theirs):
        assert refusal(each.stderr).startswith("failed to create TLS listener: ")
        assert reason in each.stderr


def test_unknown_cipher_suites(tmp_path: Path, both: Both) -> None:
    flags = ("--auto-tls", "--listen-cipher-suites=FOO", f"--data-dir={tmp_path}")
    ours, theirs = both("grpc-proxy", "start", "--listen-addr=127.0.0.1:0", *flags)
    assert ours.returncode == theirs.returncode == 1
    assert 'unexpected TLS cipher suite "FOO"' in theirs.stderr
    assert 'unexpected TLS cipher suite "FOO"' in ours.stderr


def test_a_certificate_with_a_name_is_not_shown_to_members(tmp_path: Path, both: Both) -> None:
    """A member would take every client of the proxy for the user of that name."""
    pair = Authority(tmp_path).issue("root")
    flags = (f"--cert={pair.cert}", f"--key={pair.key}", "--listen-addr=127.0.0.1:0")
    ours, theirs = both("grpc-proxy", "start", *flags)
    assert ours.returncode == theirs.returncode == 1
    assert refusal(theirs.stderr) == f"cert has non empty Common Name (root): {pair.cert}"
    assert refusal(ours.stderr) == refusal(theirs.stderr)


def test_an_address_for_metrics_in_use() -> None:
    with held_port() as port:
        flags = (f"--listen-addr=127.0.0.1:{port}", f"--metrics-addr=http://127.0.0.1:{port}")
        # One after the other: they have one port.
        ours = run(PROGRAM, "grpc-proxy", "start", *flags)
        theirs = run(binary("etcd"), "grpc-proxy", "start", *flags)
    assert ours.returncode == theirs.returncode == 1
    assert refusal(theirs.stderr) == f"listen tcp 127.0.0.1:{port}: bind: address already in use"
    assert refusal(ours.stderr).startswith(refusal(theirs.stderr))


def test_records_that_do_not_exist(both: Both) -> None:
    for command in COMMANDS:
        flags = ("--discovery-srv=no.domain.invalid", "--listen-addr=127.0.0.1:0")
        ours, theirs = both(command, "start", *flags)
        assert ours.returncode == theirs.returncode == 1
        expected = "dns lookup errors: lookup _etcd-client-ssl._tcp.no.domain.invalid"
        assert refusal(theirs.stderr).startswith(expected)
        assert refusal(ours.stderr).startswith(expected)


def test_the_procfile_puts_both_in_front_of_the_cluster() -> None:
    members = {
        word.removeprefix("http://")
        for words in commands(REPOSITORY / "Procfile").values()
        for flag, word in pairwise(words)
        if flag == "--listen-client-urls"
    }
    found = {
        given.command.path: given
        for _, *words in commands(REPOSITORY / "Procfile.proxy").values()
        for given in [parse(ROOT, words)]
    }
    assert set(found) == {"kvorum gateway start", "kvorum grpc-proxy start"}
    assert all(set(each.values["endpoints"]) == members for each in found.values())  # type: ignore[arg-type]
    addresses = {each.values["listen-addr"] for each in found.values()}
    assert len(addresses | members) == 5
