"""`dump wal`: the same lines as etcd-dump-logs, of both servers' logs, whole, torn and corrupt."""

import os
import random
import shlex
import signal
import stat
import subprocess
import sys
import tracemalloc
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.api.pb.raftpb import Entry
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal.framing import ENTRY
from kvorum.tools.utl.dumps.records import RecordReader
from kvorum.tools.utl.dumps.tree import ENTRY_TYPES
from tests.tools.utl.dumps.conftest import PASSWORDS, Stopped
from tests.tools.utl.dumps.logs import BATCHES, Batch, WrittenLog, write_log
from tests.tools.utl.dumps.runs import Words, dump, dumped, has_tool, objects, tool, without_secrets

LOGS = "etcd-dump-logs"


def shown(outcome_objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in outcome_objects if each["kind"] == "entry"]


def rows(output: str) -> list[str]:
    """Return the lines about entries."""
    return [line for line in output.splitlines() if line[:4].strip().isdigit()]


def snapshot_names(member: Stopped) -> list[str]:
    return sorted(each.name for each in (member.directory / "member" / "snap").glob("*.snap"))


@pytest.mark.long
def test_lines_are_those_of_etcd_dump_logs(member: Stopped) -> None:
    place = member.directory
    oldest = snapshot_names(member)[0]
    for words in (
        [],
        [f"-start-snap={oldest}"],
        ["-start-index=0"],
        *(["-start-index=0", f"-entry-type={word}"] for word in ENTRY_TYPES),
        ["-start-index=0", "-entry-type", "IRRPut,ConfigChange,IRRLeaseGrant"],
        ["-start-index=100000"],
    ):
        theirs = tool(LOGS, *words, place)
        assert dumped("wal", *words, place) == without_secrets(theirs.output), words
    assert len(rows(dumped("wal", "-start-index=0", place))) > 350


def test_an_index_to_start_at_is_shown(member: Stopped) -> None:
    # Newer tools show it as well; this one begins behind it.
    theirs = tool(LOGS, "-start-index", "41", member.directory)
    ours = dumped("wal", "--start-index", "42", member.directory)
    assert ours.replace("index 42", "index 41") == without_secrets(theirs.output)
    assert rows(ours)[0].split()[1] == "42"


def test_records_are_those_of_etcd_dump_logs(member: Stopped) -> None:
    for words in ([], ["-start-index", "60"]):
        theirs = tool(LOGS, "-raw", *words, member.directory).output.splitlines()
        ours = dumped("wal", "-raw", *words, member.directory).splitlines()
        assert len(ours) == len(theirs) > 500
        different = [line for line, other in zip(ours, theirs, strict=True) if line != other]
        assert all("<value removed>" in line for line in different)
        assert len(different) <= 6


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "Must provide data-dir argument (got [])"),
        (["-start-snap", "a", "-start-index", "1", "x"], "start-snap and start-index flags cannot"),
        (["nowhere"], "Failed loading snapshot: open nowhere/member/snap: no such file or dir"),
    ],
)
def test_refusals_are_those_of_etcd_dump_logs(words: list[str], text: str) -> None:
    theirs, ours = tool(LOGS, *words), dump("wal", *words)
    assert ours.code == theirs.code == 1
    assert ours.errors.startswith(f"Error: {text}")
    assert ours.errors.removeprefix("Error: ") == theirs.errors.split(" ", 2)[2]


def test_other_refusals(member: Stopped, tmp_path: Path) -> None:
    place = member.directory
    for words, text in (
        (["--start-snap=x.snap"], "Failed loading snapshot: open "),
        ([f"--wal-dir={tmp_path}"], "there is no file of a log"),
        (["--raw", "--entry-type=Normal"], "--entry-type not supported in the RAW mode"),
        (["--raw", f"--wal-dir={tmp_path / 'none'}"], "Failed to read directory"),
        (["--stream-decoder=/no/such/program"], "cannot be run"),
    ):
        found = dump("wal", place, *words)
        assert found.code == 1 and text in found.errors, found
    found = dump("wal", place, "--entry-type=Foo,IRRTxn")
    assert found.code == 0 and found.errors.startswith("[Foo] is not a valid entry-type, ignored.")
    assert found.output.endswith(f"Entry types (Foo,IRRTxn) count is : {len(rows(found.output))}\n")


@pytest.mark.long
@settings(max_examples=15)
@given(
    st.booleans(),
    st.integers(0, 400),
    st.integers(0, 420),
    st.lists(st.sampled_from(ENTRY_TYPES), unique=True),
)
def test_filters_leave_out_what_they_say(
    etcd: Stopped, kvorum: Stopped, is_own: bool, start: int, end: int, words: list[str]
) -> None:
    place = (kvorum if is_own else etcd).directory
    everything = shown(objects("wal", place, "--start-index=0"))
    expected = [
        each
        for each in everything
        if max(start, 1) <= each["index"] < end and not types_of(each).isdisjoint(words)
    ]
    flags = (f"--start-index={start}", f"--end-index={end}", f"--entry-type={','.join(words)}")
    found = objects("wal", place, *flags)
    assert shown(found) == expected
    assert found[-1] == {"kind": "end", "entry_types": ",".join(words), "count": len(expected)}
    # The same as text.
    text = rows(dumped("wal", place, *flags))
    assert [int(line.split()[1]) for line in text] == [each["index"] for each in expected]


def types_of(each: dict[str, Any]) -> set[str]:
    """Return the words of --entry-type that an entry should go by, from its data alone."""
    if each["type"] == "conf":
        return {"ConfigChange"}
    if "v2_request" in each:
        return {"Normal", "Request"}
    request = InternalRaftRequest.FromString(b64decode(each["data"]))
    found = {"Normal", "InternalRaftRequest"}
    for field, _ in request.ListFields():
        found.add("IRR" + "".join(part.capitalize() for part in field.name.split("_")))
    return found


def log_at(tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]) -> WrittenLog:
    return write_log(tmp_path_factory.getbasetemp() / "log", batches)


@settings(max_examples=30)
@given(BATCHES)
def test_later_entries_replace_earlier_ones(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]
) -> None:
    log = log_at(tmp_path_factory, batches)
    found = objects("wal", log.directory)
    assert [(each["term"], each["index"], b64decode(each["data"])) for each in shown(found)] == [
        (entry.term, entry.index, entry.data) for entry in log.entries
    ]
    assert found[1]["entries"] == len(log.entries) == found[1]["last_index"]
    raw = shown(objects("wal", log.directory, "--raw"))
    assert [b64decode(each["data"]) for each in raw] == [
        data for batch in batches for data in batch.data
    ]


@settings(max_examples=12)
@given(BATCHES)
def test_any_log_is_shown_as_etcd_dump_logs_shows_it(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]
) -> None:
    log = log_at(tmp_path_factory, batches)
    for words in ([], ["-entry-type=Request"], ["-raw"]):
        theirs = tool(LOGS, *words, log.directory)
        assert dumped("wal", *words, log.directory) == theirs.output


@settings(max_examples=20)
@given(BATCHES, st.integers(0, 1 << 30), st.sampled_from(["cut", "sector", "bit"]))
def test_damage_ends_a_log_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Batch], seed: int, damage: str
) -> None:
    log = log_at(tmp_path_factory, batches)
    raw = dumped("wal", log.directory, "--raw").splitlines()
    chance = random.Random(seed)
    segment = log.segments[-1]
    content = bytearray(segment.read_bytes())
    length = len(content.rstrip(b"\0"))
    place = chance.randrange(length)
    if damage == "cut":
        del content[place:]
    elif damage == "sector":
        start = place - place % 512
        content[start : start + 512] = bytes(len(content[start : start + 512]))
    else:
        content[place] ^= 1 << chance.randrange(8)
    segment.write_bytes(content)
    found = dump("wal", log.directory)
    if damage != "bit" and has_tool(LOGS):
        theirs = tool(LOGS, log.directory)
        # Of a log that is corrupt theirs shows nothing.
        assert found.code == theirs.code
        assert found.code or found.output == theirs.output
    # A changed bit may go unnoticed: types and lengths are not covered by the checksum.
    assert found.code == 0 or "Error: Failed reading WAL: " in found.errors
    records = dump("wal", log.directory, "--raw")
    assert records.code == 0
    if damage == "cut":
        lines = records.output.splitlines()
        assert raw[: len(lines) - 1] == lines[:-1]


def test_a_wrong_checksum_is_reported_once_and_passed(tmp_path: Path) -> None:
    batches = [Batch(0, [b"\xff\xff"] * 5, True), Batch(0, [b"\xff\xff"] * 5, False)]
    log = write_log(tmp_path, batches)
    first = log.segments[0]
    content = first.read_bytes()
    at = content.index(b"\xff\xff", 100)
    first.write_bytes(content[:at] + b"\xfe\xff" + content[at + 2 :])
    found = dump("wal", tmp_path, "--raw")
    assert found.code == 0 and found.errors.count("CRC error") == 1
    assert found.output.count("Entry: ") == 10
    if has_tool(LOGS):
        assert found.output == tool(LOGS, "-raw", tmp_path).output
    found = dump("wal", tmp_path)
    assert found.code == 1 and "Failed reading WAL: " in found.errors
    assert len(rows(found.output)) < 5
    marks = [each["crc_right"] for each in objects("wal", tmp_path, "--raw")[:-1]]
    assert True in marks and False in marks


DECODERS = {
    "two": "print('OK' if len(line) > 9 else 'SHORT', line[:20], sep='|', flush=True)",
    "one": "print(line, flush=True)",
    "three": "print('OK', line[:3], line[3:6], sep='|', flush=True)",
}


def decoder(directory: Path, body: str) -> Path:
    path = directory / "decoder"
    path.write_text(
        f"#!{sys.executable} -S\nimport sys\nfor line in sys.stdin:\n    line = line.strip()\n"
        f"    {body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("form", DECODERS)
def test_a_decoder_is_asked_as_etcd_dump_logs_asks(tmp_path: Path, form: str) -> None:
    log = write_log(tmp_path / "log", [Batch(0, [b"", b"\xff\xff", b"\x08\x07" * 9], False)])
    command = f"-stream-decoder={decoder(tmp_path, DECODERS[form])}"
    ours = dumped("wal", command, log.directory)
    assert ours == tool(LOGS, command, log.directory).output
    assert ours.count("\n   1\t") == 3
    for each in shown(objects("wal", command, log.directory)):
        assert each["decoder_status"] and "decoded_data" in each


@pytest.mark.parametrize(
    ("body", "text"),
    [("sys.exit()", "ended before it was asked"), ("print('OK|'); sys.exit(3)", "ended")],
)
def test_a_decoder_that_ends_is_reported(tmp_path: Path, body: str, text: str) -> None:
    log = write_log(tmp_path / "log", [Batch(0, [b"", b"", b""], False)])
    path = decoder(tmp_path, body)
    found = dump("wal", "--stream-decoder", shlex.quote(str(path)), log.directory)
    assert found.code == 1 and text in found.errors


def test_no_secret_is_shown(member: Stopped) -> None:
    wal = member.directory / "member" / "wal"
    secrets = set(PASSWORDS)
    for record in RecordReader(
        RealFiles(), str(wal), sorted(each.name for each in wal.glob("*.wal"))
    ):
        if record.type == ENTRY:
            try:
                request = InternalRaftRequest.FromString(Entry.FromString(record.data).Data)
            except DecodeError:
                continue  # a change of the membership, or a request of version 2
            for part in (request.auth_user_add, request.auth_user_change_password):
                secrets |= {part.password, part.hashedPassword}
            secrets |= {request.authenticate.password, request.authenticate.simple_token}
    secrets.discard("")
    assert len(secrets) == len(PASSWORDS) + 6  # as many hashes, and a token for each login
    for words in (["wal"], ["wal", "--start-index=0"], ["wal", "--raw"], ["snap"]):
        for form in ([], ["-w", "json"]):
            output = dumped(*words, member.directory, *form)
            assert not [each for each in secrets if each in output]
    for words in (["wal", "--start-index=0"], ["wal", "--raw"]):
        for each_entry in shown(objects(*words, member.directory)):
            data = b64decode(each_entry["data"])
            assert not [each for each in secrets if each.encode() in data]


def test_a_reader_that_goes_away_ends_a_dump_quietly(member: Stopped) -> None:
    program = Path(sys.executable).parent / "kvorumutl"
    command = [str(program), "dump", "wal", str(member.directory), "--start-index=0", "--raw"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    # Closed before anything is read: the first write fails.
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (-signal.SIGPIPE, b"")


def test_nothing_is_changed(member: Stopped) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {
            os.fspath(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(member.directory.rglob("*"))
            # LMDB notes its readers there.
            if path.is_file() and not path.name.endswith("-lock")
        }

    before = state()
    dumps: list[Words] = [
        ["wal", member.directory],
        ["wal", member.directory, "--raw"],
        ["snap", member.directory],
        ["db", "list-bucket", member.directory],
        ["db", "iterate-bucket", member.directory, "key"],
        ["db", "scan-keys", member.directory, "0"],
        ["db", "hash", member.directory],
    ]
    for words in dumps:
        dumped(*words)
    assert state() == before


def test_a_long_log_takes_little_memory(tmp_path: Path) -> None:
    batches = [Batch(0, [b"\xff" * 50_000] * 4, number % 20 == 0) for number in range(100)]
    log = write_log(tmp_path, batches)
    log.entries.clear()
    names = [each.name for each in log.segments]
    tracemalloc.start()
    try:
        assert sum(1 for _ in RecordReader(RealFiles(), str(log.wal), names)) > 400
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
