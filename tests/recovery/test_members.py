"""Members that are lost, damaged, misplaced, or should not be there: the page brings them back."""

import re
import shutil
from pathlib import Path

import pytest

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.buckets import KEY
from tests.recovery.page import Step
from tests.recovery.site import Site
from tests.tools.doctor.damaging import Content, rewrite_database


@pytest.mark.long
def test_a_member_is_lost(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.kill("m2")
    shutil.rmtree(three.data / "m2" / "member" / "wal")
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_the_quorum_is_lost_for_a_while(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.kill("m2", "m3")
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_the_quorum_is_lost_for_good(three: Site, steps: list[Step]) -> None:
    three.write()
    # Written through the survivor, so it has them.
    with three.client("m1") as client:
        client.put("key/last", "value")
        client.get("key/last")
    before = three.content("m1")
    three.kill("m2", "m3")
    for name in ("m2", "m3"):
        shutil.rmtree(three.data / name)
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_all_members_are_lost(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.run("kvorumctl --endpoints=$H1:2379 snapshot save $BACKUPS/backup.db")
    # What came after the backup is not in it.
    three.write(5, "lost/")
    three.kill(*three.members)
    shutil.rmtree(three.data)
    three.data.mkdir()
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_a_member_holds_other_data_than_the_rest(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.stop(*three.members)

    def lie(content: Content) -> None:
        row, value = content[KEY][-1]
        kv = KeyValue.FromString(value)
        kv.value = b"wrong"
        content[KEY][-1] = row, kv.SerializeToString()

    rewrite_database(three.data / "m2", lie)
    for name in three.members:
        three.write_config(name, "corrupt-check-time: 1000000000\n")
    # A leader takes the others for those that differ, so this one had better not campaign.
    with (three.config / "m2.yml").open("a") as file:
        file.write("election-timeout: 20000\n")
    assert three.start(*three.members)
    three.follow(steps)
    three.check(before)


def cut_in_the_middle(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    # In a word: bytes that only fill a record up are covered by no checksum.
    found = re.compile(rb"[a-z]{4}").search(content, len(content.rstrip(b"\0")) // 2)
    assert found is not None
    content[found.start()] ^= 0x10
    segment.write_bytes(content)


@pytest.mark.long
def test_the_log_is_damaged(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.kill("m2")
    cut_in_the_middle(max((three.data / "m2" / "member" / "wal").glob("*.wal")))
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_the_database_is_damaged(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.stop("m2")
    (path,) = (three.data / "m2" / "member" / "backend").glob("backend.?")
    with path.open("r+b") as file:
        file.truncate(8192)
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_the_database_is_missing(three: Site, steps: list[Step]) -> None:
    # While the log has everything from its beginning, the database is made anew from it.
    three.stop("m2")
    three.write_config("m2", "snapshot-count: 5\n")
    assert three.start("m2")
    three.write()
    before = three.content()
    three.stop("m2")
    shutil.rmtree(three.data / "m2" / "member" / "backend")
    three.follow(steps)
    three.check(before)


def test_a_member_starts_with_an_empty_directory(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.stop("m2")
    (three.data / "m2").rename(three.data / "m2.elsewhere")
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_a_member_starts_with_the_directory_of_another(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.stop("m1", "m2")
    shutil.copytree(three.data / "m1", three.data / "copy")
    assert three.start("m1")
    path = three.config / "m2.yml"
    path.write_text(path.read_text().replace(str(three.data / "m2"), str(three.data / "copy")))
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_a_member_is_listed_that_does_not_exist(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    with three.client() as client:
        client.members.add(["http://10.9.9.9:2380"])
    three.follow(steps)
    three.check(before)


@pytest.mark.long
def test_a_removed_member_comes_back(three: Site, steps: list[Step]) -> None:
    three.write()
    before = three.content()
    three.stop("m2")
    three.run("kvorumctl --endpoints=$ENDPOINTS member remove $(member_id m2)")
    three.follow(steps)
    three.check(before)
