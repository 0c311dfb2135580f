"""Every flag, given in every way, and how a real etcd takes the same command lines."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.durations import duration, duration_text
from kvorum.member.config import MemberConfig
from kvorum.network.edge import Limits as EdgeLimits
from kvorum.network.urls import url
from kvorum.process.settings.checks import fill, make_config
from kvorum.process.settings.config import GRPC_OVERHEAD_BYTES, ROWS, Config, ConfigError
from kvorum.process.settings.environment import (
    PREFIXES,
    EnvironmentRefusedError,
    from_environment,
    variables_of,
)
from kvorum.process.settings.flags import (
    FLAGS,
    UNUSED,
    FlagError,
    parse_arguments,
    without_secrets,
)
from kvorum.process.settings.gates import gates
from kvorum.process.settings.help import flags_text
from kvorum.process.settings.member import member_config
from kvorum.process.settings.rows import BOOL, FlagRow
from kvorum.process.settings.suggestions import suggestions
from kvorum.server.peer.cluster.peering import PeeringSettings as PeeringSettings
from kvorum.server.peer.transport.settings import TransportSettings as TransportSettings
from kvorum.server.settings import (
    ServerSettings,
    edge_limits,
    peering_settings,
    server_settings,
)
from kvorum.state.mvcc.watch.hub import PROGRESS_SECONDS
from kvorum.storage.backend.backend import BufferLimits as BackendLimits
from tests.etcd import binary, is_target
from tests.process.settings.texts import default, other_text
from tests.waiting import WAIT_SECONDS_MAX

REFUSE_LATER = "--heartbeat-interval=0"


flags = pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)


@flags
def test_every_flag_by_command_line(flag: FlagRow) -> None:
    text = other_text(flag)
    value = flag.kind.parse(text)
    assert value != default(flag)
    for dashes in ("-", "--"):
        assert parse_arguments([f"{dashes}{flag.name}={text}"]) == ({flag.name: value}, [])
        if flag.kind is BOOL:
            assert parse_arguments([f"{dashes}{flag.name}"]) == ({flag.name: True}, [])
        else:
            assert parse_arguments([f"{dashes}{flag.name}", text]) == ({flag.name: value}, [])


def test_every_flag_has_one_row() -> None:
    names = [flag.name for flag in FLAGS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("field", ROWS)
def test_a_flag_fills_its_field_and_no_other(field: str) -> None:
    flag = ROWS[field]
    value = flag.kind.parse(other_text(flag))
    changed: dict[str, Any] = {field: value}
    assert fill({flag.name: value}) == replace(Config(), **changed) != Config()


@pytest.mark.parametrize("flag", UNUSED, ids=lambda flag: flag.name)
def test_a_flag_without_a_field_fills_none(flag: FlagRow) -> None:
    assert fill({flag.name: flag.kind.parse(other_text(flag))}) == Config()


def test_passwords_are_not_shown() -> None:
    given = ["--name", "n", "-discovery-password=s", "--discovery-user", "u:s", "--cors=x"]
    shown = ["--name", "n", "--discovery-password=***", "--discovery-user", "***", "--cors=x"]
    assert without_secrets(given) == shown


def test_what_zero_stands_for() -> None:
    config = fill({flag.name: flag.kind.parse("0") for flag in ROWS.values() if flag.zero})
    assert (config.snapshot_entries, config.catch_up_entries) == (10_000, 5_000)
    assert config.quota_bytes == 2 * 1024**3
    assert (config.batch_seconds, config.batch_writes_max) == (0.1, 10_000)
    assert (config.compaction_batch_revisions, config.compaction_sleep_seconds) == (1000, 0.01)
    assert (config.progress_notify_seconds, config.slow_request_seconds) == (600.0, 0.3)
    assert config.token_ttl_seconds == 300
    assert config == Config()


@pytest.mark.parametrize("cost", [0, 3, 4, 31, 32, 2**64 - 1])
def test_a_cost_that_bcrypt_does_not_have_is_replaced(cost: int) -> None:
    given = {"data-dir": "d", "name": "n", "bcrypt-cost": cost}
    config = make_config(given)
    if 4 <= cost <= 31:
        assert config.bcrypt_cost == cost and suggestions(config, given) == []
    else:
        assert config.bcrypt_cost == 10
        fields = {"min-cost": 4, "max-cost": 31, "default-cost": 10, "given-cost": cost}
        text = "use default bcrypt cost instead of the invalid given cost"
        assert suggestions(config, given) == [(text, fields)]
    assert member_config(config, "d").bcrypt_cost == config.bcrypt_cost


def test_a_member_has_defaults_only_for_what_no_flag_decides() -> None:
    given = {flag.name: flag.kind.parse(other_text(flag)) for flag in ROWS.values()}
    given |= {
        "initial-cluster": "other=http://other:2380",
        "feature-gates": gates("AllAlpha=true,FastLeaseKeepAlive=false"),
        "auto-compaction-retention": "7",
    }
    usual = member_config(Config(), "here")
    by_revision = member_config(fill(given | {"auto-compaction-mode": "revision"}), "there")
    by_age = member_config(fill(given | {"auto-compaction-mode": "periodic"}), "there")
    decided = {
        each.name
        for each in fields(MemberConfig)
        for other in (by_revision, by_age)
        if getattr(usual, each.name) != getattr(other, each.name)
    }
    assert decided == {each.name for each in fields(MemberConfig) if each.default is NO_DEFAULT}


def test_what_flags_decide_beside_the_member() -> None:
    usual = Config()
    given = {flag.name: flag.kind.parse(other_text(flag)) for flag in ROWS.values()}
    changed = fill(given | {"feature-gates": (("StopGRPCServiceOnDefrag", True),)})
    derive: list[tuple[Callable[[Config], object], set[str]]] = [
        (server_settings, {each.name for each in fields(ServerSettings)}),
        (
            edge_limits,
            {"request_bytes_max", "streams_per_connection_max", "ping_seconds_min"}
            | {"keepalive_seconds", "keepalive_timeout_seconds"},
        ),
        (
            lambda config: peering_settings(config, ()),
            {"peer_urls", "read_seconds_max", "write_seconds_max"},
        ),
    ]
    for derived, expected in derive:
        before, after = derived(usual), derived(changed)
        names: list[str] = [each.name for each in fields(before)]  # type: ignore[arg-type]
        decided = {name for name in names if getattr(before, name) != getattr(after, name)}
        assert decided == expected


def test_parts_that_can_stand_alone_have_the_defaults_of_the_flags() -> None:
    config = make_config({})
    edge = EdgeLimits()
    assert edge.request_bytes_max == config.request_bytes_max + GRPC_OVERHEAD_BYTES
    assert edge.streams_per_connection_max == config.streams_max
    assert edge.ping_seconds_min == config.client_ping_seconds_min
    assert edge.keepalive_seconds == config.keepalive_seconds
    assert edge.keepalive_timeout_seconds == config.keepalive_timeout_seconds
    backend = BackendLimits()
    assert (backend.flush_seconds, backend.flush_writes) == (
        config.batch_seconds,
        config.batch_writes_max,
    )
    transport = TransportSettings(None, 1.0, lambda: 0.0)
    peering = PeeringSettings(peer_urls=())
    for part in (transport, peering):
        assert part.read_seconds_max == config.peer_read_seconds
        assert part.write_seconds_max == config.peer_write_seconds
    assert config.progress_notify_seconds == PROGRESS_SECONDS


@flags
@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_flag_by_environment(flag: FlagRow, prefix: str) -> None:
    if flag.name == "version":
        return
    text = other_text(flag)
    variable = prefix + flag.name.upper().replace("-", "_")
    expected = {flag.name: flag.kind.parse(text)}
    assert from_environment({variable: text}, {}) == (expected, [])
    assert from_environment({variable: ""}, {}) == ({}, [])
    assert from_environment(dict.fromkeys(variables_of(flag.name), text), {}) == (expected, [])
    with pytest.raises(EnvironmentRefusedError, match=f"{variable} is shadowed by --{flag.name}"):
        from_environment({variable: text}, {flag.name: None})


def test_variables_that_disagree_are_refused() -> None:
    with pytest.raises(EnvironmentRefusedError, match="KVORUM_NAME=a and ETCD_NAME=b contradict"):
        from_environment({"KVORUM_NAME": "a", "ETCD_NAME": "b"}, {})


def test_unknown_variables_are_warned_of() -> None:
    environment = {"ETCD_FOO": "1", "KVORUM_BAR": "2", "KVORUM_EDGE": "python", "HOME": "/"}
    _, warned = from_environment(environment, {})
    assert [fields["environment_variable"] for _, fields in warned] == [
        "ETCD_FOO=1",
        "KVORUM_BAR=2",
    ]


def test_streams_between_members_get_the_time_that_was_given_but_at_least_five_seconds() -> None:
    arguments = ["--data-dir=d", "--name=n", "--raft-read-timeout=7s", "--raft-write-timeout=3s"]
    given, _ = parse_arguments(arguments)
    config = make_config(given)
    told = peering_settings(config, ())
    assert (told.read_seconds_max, told.write_seconds_max) == (7.0, 5.0)
    given["raft-write-timeout"] = 8.0
    assert peering_settings(make_config(given), ()).write_seconds_max == 8.0
    given["raft-write-timeout"] = 3.0
    raised = "--raft-write-timeout was raised to its least value"
    assert suggestions(config, given) == [(raised, {"least": "5s"})]


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        (["127.0.0.1", "[::1]", "0.0.0.0", "m1.example", "192.0.2.7", "192.0.2.8"], "192.0.2.7"),
        (["[2001:db8::7]"], "2001:db8::7"),
        (["127.0.0.1", "m1.example"], ""),
    ],
)
def test_other_members_are_dialed_from_the_first_address_that_is_advertised(
    hosts: list[str], address: str
) -> None:
    urls = ",".join(f"http://{host}:2380" for host in hosts)
    given, _ = parse_arguments(
        [
            "--data-dir=d",
            "--name=n",
            f"--initial-advertise-peer-urls={urls}",
            f"--initial-cluster={','.join(f'n={url}' for url in urls.split(','))}",
        ]
    )
    assert make_config(given).peer_local_address == ""
    given["feature-gates"] = gates("SetMemberLocalAddr=true")
    config = make_config(given)
    assert config.peer_local_address == address
    assert bool(suggestions(config, given)) == (not address)


@flags
def test_the_help_has_every_flag(flag: FlagRow) -> None:
    assert f"--{flag.name}" in flags_text()


@pytest.mark.parametrize("name", ["experimental-compaction-batch-limit", "discovery", "enable-v2"])
def test_a_removed_flag_says_what_to_do(name: str) -> None:
    with pytest.raises(FlagError, match=f"flag provided but not defined: -{name} \\(.+\\)"):
        parse_arguments([f"--{name}=1"])


@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_durations_survive_being_written(nanoseconds: int) -> None:
    assert duration(duration_text(nanoseconds)) == nanoseconds


def etcd_says(*arguments: str) -> tuple[int, str]:
    """Return the exit code and first line of a real etcd for a command line that it refuses.

    A command line that it can parse is refused later for its heartbeat, with code 1.
    """
    done = subprocess.run(
        [str(binary("etcd")), *arguments],
        capture_output=True,
        text=True,
        env={"HOME": "/"},
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stderr.split("\n", 1)[0]


def we_say(*arguments: str) -> tuple[int, str]:
    try:
        values, rest = parse_arguments(arguments)
    except FlagError as error:
        return 2, str(error).splitlines()[0]
    if not rest:
        with pytest.raises(ConfigError):
            make_config(values)
    return 1, ""


def assert_agreement(*arguments: str) -> None:
    if any("\0" in argument for argument in arguments):
        return
    theirs, ours = etcd_says(*arguments), we_say(*arguments)
    assert theirs[0] == ours[0], (arguments, theirs)
    if theirs[0] == 2 and (is_target() or "after host" not in ours[1]):
        # An older Go looks for a port after the last colon, a newer one after the first.
        assert theirs[1] == ours[1], arguments


digits = st.text("0123456789xXoObB_-+aF ", max_size=6)
numbers = st.one_of(digits, st.integers(-(2**65), 2**65).map(str), st.integers(0, 2**16).map(hex))
units = st.sampled_from(["ns", "us", "µs", "ms", "s", "m", "h", "", "x", " "])
durations = st.lists(
    st.tuples(st.sampled_from(["1", "1.5", ".5", "5.", ".", "", "007", "999999999"]), units),
    max_size=3,
).map(lambda parts: "".join(number + unit for number, unit in parts))
signed_durations = st.tuples(st.sampled_from(["", "-", "+", "0"]), durations).map("".join)
hosts = st.sampled_from(["127.0.0.1", "localhost", "[::1]", "::1", "", "name.example", "0.0.0.0"])
ports = st.sampled_from([":80", ":", "", ":abc", ":70000", ":80:90", ":-1"])
paths = st.sampled_from(["", "", "/", "/x", "//"])
one_url = st.tuples(
    st.sampled_from(["http://", "https://", "ftp://", "", "http:", " http://"]), hosts, ports, paths
).map("".join)
url_lists = st.lists(one_url, max_size=3).map(",".join)
booleans = st.sampled_from(["1", "t", "TRUE", "True", "tRUE", "0", "f", "no", "", "yes", "FALSE"])

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@few
@given(numbers)
def test_unsigned_numbers_as_etcd_reads_them(text: str) -> None:
    assert_agreement(f"--max-wals={text}", REFUSE_LATER)


@few
@given(numbers)
def test_signed_numbers_as_etcd_reads_them(text: str) -> None:
    assert_agreement(f"--quota-backend-bytes={text}", REFUSE_LATER)


@few
@given(signed_durations)
def test_durations_as_etcd_reads_them(text: str) -> None:
    assert_agreement(f"--grpc-keepalive-min-time={text}", REFUSE_LATER)


@few
@given(url_lists)
def test_urls_as_etcd_reads_them(text: str) -> None:
    assert_agreement(f"--listen-peer-urls={text}", REFUSE_LATER)


@few
@given(booleans)
def test_booleans_as_etcd_reads_them(text: str) -> None:
    assert_agreement(f"--pre-vote={text}", REFUSE_LATER)


arguments = st.lists(
    st.one_of(
        st.sampled_from(["--name", "-name", "--name=x", "x", "--", "-", "---name", "--=x"]),
        st.sampled_from(["--pre-vote", "false", "--pre-vote=false", "--no-such", "--config"]),
        st.sampled_from(["--v=3", "-max-wals", "3", "--snapshot=1"]),
    ),
    max_size=4,
)


@few
@given(arguments)
def test_command_lines_as_etcd_reads_them(given_arguments: list[str]) -> None:
    assert_agreement(REFUSE_LATER, *given_arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--heartbeat-interval=0"],
        ["--election-timeout=0"],
        ["--heartbeat-interval=300"],
        ["--election-timeout=60000"],
        ["--listen-client-urls=http://127.0.0.1:1"],
        ["--listen-client-urls=http://name:1", "--advertise-client-urls=http://name:1"],
        ["--listen-peer-urls=http://:1"],
        ["--listen-metrics-urls=http://name:1"],
        ["--advertise-client-urls=http://:1"],
        ["--initial-advertise-peer-urls=http://:1"],
        ["--auto-compaction-mode=never"],
    ],
    ids=" ".join,
)
def test_refusals_in_etcds_words(arguments: list[str]) -> None:
    code, _ = etcd_says(*arguments)
    assert code == 1
    with pytest.raises(ConfigError) as refused:
        make_config(parse_arguments(arguments)[0])
    done = subprocess.run(
        [str(binary("etcd")), *arguments], capture_output=True, text=True, check=False
    )
    quoted = str(refused.value).replace('"', '\\"')
    if not is_target():
        # 3.5 does not mention sockets.
        quoted = re.sub(r"in the format (\S+), .* (?=\(unexpected)", r"\1 ", quoted)
    assert f'"error":"{quoted}"' in done.stderr


def test_the_table_has_the_flags_of_the_reference() -> None:
    page = Path(__file__).parents[4] / "shared" / "reference" / "ops-server.md"
    if not page.exists():
        pytest.skip("no reference beside the repository")
    text = page.read_text().split("## 2. Flags", 1)[1].split("## 3.", 1)[0]
    names = {
        name.strip()
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| Flag", "| (no flag)"))
        for name in line.split("|")[1].split("/")
    }
    ours = {"access-log", "access-log-prefix", "access-log-sample"}
    ours |= {"backup-every", "backup-keep", "backup-log-interval", "backup-to", "ephemeral"}
    assert names == {flag.name for flag in FLAGS} - ours


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://localhost:2379", "127.0.0.1:2379"),
        ("http://[::1]:2379", "[::1]:2379"),
        ("http://10.0.0.1:2379", "10.0.0.1:2379"),
        ("unix://name:0", "unix:name:0"),
        ("unix:///run/kvorum.sock", "unix:/run/kvorum.sock"),
    ],
)
def test_where_urls_are_listened_at(text: str, address: str) -> None:
    assert url(text).address == address
