"""A data directory that a real etcd wrote, for tests that read or change it."""

from pathlib import Path

import pytest

from tests.etcd import running_etcd

PUTS = 60


def value_of(number: int) -> bytes:
    return b"value %d " % number * (1 + number * 7 % 150)


@pytest.fixture(scope="session")
def etcd_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run an etcd that takes a snapshot every 20 entries, and that ends cleanly."""
    directory = tmp_path_factory.mktemp("etcd-data")
    with running_etcd(directory, "--snapshot-count=20") as etcd:
        for number in range(PUTS):
            etcd.put(b"key %d" % number, value_of(number))
    return directory
