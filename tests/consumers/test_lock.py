"""What `make consumers` installs is locked with hashes, and comes from no particular place."""

import re

from tests.consumers.environment import REPOSITORY

DIRECTORY = REPOSITORY / "tools" / "consumers"
LOCK = (DIRECTORY / "requirements.lock").read_text()
ENTRIES = [entry for entry in re.split(r"\n(?=\S)", LOCK.strip()) if not entry.startswith("#")]


def test_the_lock_has_a_hash_of_everything_and_names_no_place() -> None:
    assert all("--hash=sha256:" in entry for entry in ENTRIES)
    assert "://" not in LOCK and "--index" not in LOCK


def test_the_lock_is_of_what_is_asked_for() -> None:
    asked = re.findall(r"^([\w-]+)\S*==(\S+)", (DIRECTORY / "requirements.in").read_text(), re.M)
    locked = [re.split("==| ", entry)[:2] for entry in ENTRIES]
    assert len(asked) > 5
    for name, version in asked:
        assert [name, version] in locked
