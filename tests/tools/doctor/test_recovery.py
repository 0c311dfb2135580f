"""Which directory to recover from, where its files do not tell everything."""

from pathlib import Path

from kvorum.state.membership.documents import MemberDocument
from kvorum.tools.doctor.recovery import recovery
from kvorum.tools.doctor.stopped import StoppedProgress
from kvorum.tools.offline.directories import DataDirectory


def progress(*voters: int) -> StoppedProgress:
    members = [MemberDocument(each, name=f"m{each}") for each in voters]
    directory = DataDirectory(Path("/data"))
    return StoppedProgress(directory, "etcd", 7, 1, members, 2, 9, 9, 2, {})


def test_a_database_without_members_is_no_quorum() -> None:
    """An etcd that is killed before its first commit has the members in its log alone."""
    for voters, is_enough in (((), False), ((1,), True), ((1, 2, 3), False)):
        (found,) = recovery([progress(*voters)], given=2)
        assert found.name == "recover-from"
        assert ("start them as they are" in found.what) is is_enough
        assert bool(found.run) is not is_enough
