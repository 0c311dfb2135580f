"""A member whose data differs from what the others hold, and the alarms that say so."""

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.directory import database_path, read_current
from kvorum.storage.backend.encoding import CHECKSUM_BYTES, seal_value
from kvorum.storage.backend.environment import writing
from kvorum.storage.backend.quota import reserved_bytes
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.cluster.members import Member


def tamper(member: Member, key: bytes, value: bytes) -> None:
    """Change a key of a stopped member, as if it had always been so."""
    directory = str(member.data / "member" / "backend")
    current = read_current(RealFiles(), directory)
    assert current is not None
    environment = LmdbEnvironments().open(
        database_path(directory, current.number), reserved_bytes(0)
    )
    view = environment.begin()
    rows = view.scan(KEY, b"", 10_000)
    view.end()
    with writing(environment) as transaction:
        for row, sealed in rows:
            kv = KeyValue.FromString(sealed[:-CHECKSUM_BYTES])
            if kv.key == key:
                kv.value = value
                changed = seal_value(row, kv.SerializeToString())
                transaction.put(KEY, [(row, changed)])
    environment.close()


def alarms(member: Member) -> list[tuple[int, int]]:
    raised = member.answer("Maintenance/Alarm", pb.AlarmRequest()).alarms
    return [(each.memberID, each.alarm) for each in raised]
