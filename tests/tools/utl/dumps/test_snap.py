"""`dump snap`: the snapshot files of both servers, whole and damaged."""

import shutil
from pathlib import Path

from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap.format import parse_name
from kvorum.tools.offline.histories import read_history
from tests.tools.utl.dumps.conftest import Stopped
from tests.tools.utl.dumps.runs import dump, dumped, objects, parsed


def test_every_snapshot_is_shown(member: Stopped) -> None:
    snap, wal = (member.directory / "member" / name for name in ("snap", "wal"))
    shown = objects("snap", member.directory)
    names = sorted(each.name for each in snap.glob("*.snap"))
    assert [each["file"] for each in shown] == names and len(names) >= 3
    assert [(each["term"], each["index"]) for each in shown] == list(map(parse_name, names))
    newest, _ = read_history(RealFiles(), snap, wal)
    assert newest is not None and shown[-1]["conf_state"]["voters"] == list(
        newest.conf_state.voters
    )
    (voter,) = newest.conf_state.voters
    for each in shown:
        assert each["crc_right"] and each["problem"] is None
        assert each["document"][f"/0/members/{voter:x}/raftAttributes"] == (
            '{"peerURLs":["http://127.0.0.1:2"]}'
        )
    text = dumped("snap", member.directory)
    assert text.count("(right)") == len(names) == text.count(f"nodes=[{voter:x}]")
    assert dumped("snap", snap / names[0]) == text.split("\n\n")[0] + "\n"


def test_a_damaged_snapshot_hides_no_other(member: Stopped, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    shutil.copytree(member.directory / "member" / "snap", place / "member" / "snap")
    names = sorted((place / "member" / "snap").glob("*.snap"))
    content = bytearray(names[0].read_bytes())
    content[-20] ^= 1
    names[0].write_bytes(content)
    names[1].write_bytes(b"")
    found = dump("snap", place, "-w", "json")
    assert found.code == 1
    assert str(names[0]) in found.errors and str(names[2]) not in found.errors
    shown = parsed(found.output)
    assert len(shown) == len(names)
    assert shown[0]["crc_right"] is False
    assert [each["problem"] is None for each in shown[:3]] == [False, False, True]
    # A log is then shown from the newest that is whole.
    shutil.copy(member.directory / "member" / "snap" / names[-2].name, names[-2])
    names[-1].write_bytes(content)
    shutil.copytree(member.directory / "member" / "wal", place / "member" / "wal")
    log = dump("wal", place, "-w", "json")
    assert log.code == 0 and "Passed over: " in log.errors
    start = parsed(log.output)[0]["snapshot"]
    assert (start["term"], start["index"]) == parse_name(names[-2].name)
    assert names[-1].exists()


def test_refusals(tmp_path: Path) -> None:
    found = dump("snap", tmp_path / "nowhere")
    assert found.code == 1 and "does not exist" in found.errors
    (tmp_path / "member" / "snap").mkdir(parents=True)
    found = dump("snap", tmp_path)
    assert (found.code, found.output) == (0, "") and "no snapshots" in found.errors
