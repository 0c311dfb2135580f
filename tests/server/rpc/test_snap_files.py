"""Where `.snap` files are taken, beside a real etcd's."""

from pathlib import Path
from typing import Any

from kvorum.api.pb import etcdserverpb as pb
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle, running_oracle

ENTRIES = 60
COUNT = 10


def put_to(server: Harness | Oracle, index: int) -> None:
    """Put one key after the other until so many entries are applied."""
    applied = 0
    while applied < index:
        server.ask("KV/Put", pb.PutRequest(key=b"key"))
        status: Any = server.ask("Maintenance/Status", pb.StatusRequest())
        applied = status.raftAppliedIndex


def indexes(names: list[str]) -> list[int]:
    return sorted(int(name.split("-")[1][:-5], 16) for name in names if name.endswith(".snap"))


def test_snapshots_are_taken_where_etcd_takes_them(tmp_path: Path) -> None:
    with running_oracle(tmp_path, f"--snapshot-count={COUNT}", "--max-snapshots=0") as etcd:
        put_to(etcd, ENTRIES)
    expected = indexes([each.name for each in (tmp_path / "member" / "snap").iterdir()])
    files = MemoryFiles()
    files.make_directory("/data")
    ours = Harness(files, MemoryEnvironments(files), snapshot_entries=COUNT)
    put_to(ours, ENTRIES)
    ours.pass_time(1.0)
    assert indexes(files.list("/data/member/snap")) == expected
    assert expected == list(range(COUNT + 1, ENTRIES + 1, COUNT + 1))
