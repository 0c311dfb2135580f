"""What a real etcd writes into its log when it founds a cluster whose other members are missing."""

import subprocess
from pathlib import Path

from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.raft.changes import ConfChange
from kvorum.raft.wire import decode_conf_change
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import SnapshotRecord, read_log
from tests.etcd import binary


def founded(
    directory: Path, initial_cluster: str, name: str, token: str
) -> tuple[Metadata, list[ConfChange]]:
    """Return the identity that etcd took, and the members in the order of its log."""
    pairs = [pair.partition("=") for pair in initial_cluster.split(",")]
    own = [url for each, _, url in pairs if each == name]
    command = [
        str(binary("etcd")),
        f"--data-dir={directory}",
        f"--name={name}",
        f"--initial-cluster={initial_cluster}",
        f"--initial-cluster-token={token}",
        f"--initial-advertise-peer-urls={','.join(own)}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--listen-client-urls=http://127.0.0.1:0",
        "--advertise-client-urls=http://127.0.0.1:1",
        "--unsafe-no-fsync",
        "--heartbeat-interval=10",
        "--election-timeout=50",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            # It campaigns once its first entries are applied, which means that they are written.
            if "is starting a new election" in line:
                break
        else:
            raise AssertionError(f"etcd ended with {process.wait()}:\n{''.join(lines)}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    content = read_log(RealFiles(), str(directory / "member" / "wal"), SnapshotRecord())
    changes = []
    for index, entry in enumerate(content.entries[: len({each for each, _, _ in pairs})], 1):
        assert (entry.index, entry.term) == (index, 1)
        change = decode_conf_change(entry)
        assert isinstance(change, ConfChange)
        changes.append(change)
    return Metadata.FromString(content.metadata), changes
