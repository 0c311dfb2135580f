"""Stores that are full, locked, torn, or hold what nobody wants: the page mends them."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from kvorum.client.errors import KvorumError
from kvorum.client.sync.client import Client
from tests.certificates import Authority
from tests.etcd import chosen, running_etcd
from tests.kvorum import HAS_VERSION
from tests.recovery.page import Step
from tests.recovery.site import Site, made_site
from tests.waiting import until

QUOTA_BYTES = 4 << 20
DISK_BYTES = 200 << 20


def reconfigured(site: Site, more: str) -> None:
    """Restart m1 with some lines more in its file."""
    site.stop("m1")
    site.write_config("m1", more)
    assert site.start("m1")


def overfill(site: Site) -> None:
    """Put many times what the quota has room for: how much there is shows a little later."""
    with site.client() as client:
        for _ in range(50 * QUOTA_BYTES // 100_000):
            client.put("key/0", "v" * 100_000)


@pytest.mark.long
def test_the_database_has_reached_its_quota(one: Site, steps: list[Step]) -> None:
    reconfigured(one, f"quota-backend-bytes: {QUOTA_BYTES}\n")
    one.write()
    before = one.content()
    with pytest.raises(KvorumError, match="database space exceeded"):
        overfill(one)
    one.follow(steps)
    one.check(before | {b"key/0": b"v" * 100_000, b"greeting": b"hello"})


def test_the_log_is_torn(one: Site, steps: list[Step]) -> None:
    one.write()
    before = one.content()
    one.kill("m1")
    segment = max((one.data / "m1" / "member" / "wal").glob("*.wal"))
    end = len(segment.read_bytes().rstrip(b"\0"))
    # A record's length without the record: what a power cut leaves of a batch.
    with segment.open("r+b") as file:
        file.seek(end + -end % 8)
        file.write((4096).to_bytes(8, "little") + b"\x08")
        file.truncate()
    one.follow(steps)
    one.check(before)


def fill(path: Path) -> None:
    """Write a file that takes all that is left of its disk."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass


def put_until_refused(site: Site) -> dict[bytes, bytes]:
    """Put large values until one is not acknowledged; return those that were."""
    acknowledged: dict[bytes, bytes] = {}
    with suppress(KvorumError), site.client() as client:
        while True:
            key = b"filler/%d" % len(acknowledged)
            client.put(key, bytes(1 << 20), timeout=5.0)
            acknowledged[key] = bytes(1 << 20)
    return acknowledged


def test_a_disk_is_full(tmp_path: Path, steps: list[Step]) -> None:
    with made_site(tmp_path / "site", 1) as site:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(site.data)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no file system may be mounted here")
        try:
            site.write_config("m1", f"snapshot-count: 50\nquota-backend-bytes: {DISK_BYTES * 4}\n")
            assert site.start("m1")
            site.write()
            before = site.content()
            fill(site.data / "something-else")
            acknowledged = put_until_refused(site)
            site.stop("m1")
            site.follow(steps)
            # Of the put that was not acknowledged nothing is known.
            after = site.content()
            unknown = after.keys() - before.keys() - acknowledged.keys() - {b"greeting"}
            assert unknown <= {b"filler/%d" % len(acknowledged)}
            known = {key: value for key, value in after.items() if key not in unknown}
            assert known == {**before, **acknowledged, b"greeting": b"hello"}
        finally:
            site.close()
            subprocess.run(["umount", "--lazy", site.data], check=True)


def test_revisions_went_back_after_a_restore(one: Site, steps: list[Step]) -> None:
    one.write()
    before = one.content()
    one.run("kvorumctl --endpoints=$ENDPOINTS snapshot save $BACKUPS/backup.db")
    one.write(50)
    with one.client() as client:
        seen = client.read("none").revision
    one.stop("m1")
    shutil.rmtree(one.data / "m1")
    one.run(
        "kvorumutl snapshot restore $BACKUPS/backup.db --name m1 --data-dir $DATA/m1 "
        "--initial-cluster $CLUSTER --initial-advertise-peer-urls http://$H1:2380"
    )
    assert one.start("m1")
    one.run(f"export SEEN={seen}")
    with one.client() as client:
        assert client.read("none").revision < seen
    one.follow(steps)
    one.check(before)


def with_app_deleted(site: Site) -> tuple[dict[bytes, bytes], int]:
    """Delete keys that were there; return everything that was, and the last good revision."""
    site.write()
    with site.client() as client:
        client.put("app/config", "1")
        good = client.put("app/config", "2").revision
        before = site.content()
        client.delete(prefix="app/")
    site.run(f"export GOOD={good}")
    return before, good


def test_keys_were_deleted_by_mistake(one: Site, steps: list[Step]) -> None:
    before, _ = with_app_deleted(one)
    one.follow(steps)
    one.check(before)


@pytest.mark.long
def test_keys_were_deleted_and_compacted_since(one: Site, steps: list[Step]) -> None:
    one.write(1)
    back_up = "kvorumctl --endpoints=$ENDPOINTS backup --to $BACKUPS/archive --once"
    assert one.run(back_up)[1] == 0
    before, good = with_app_deleted(one)
    assert one.run(back_up)[1] == 0
    with one.client() as client:
        later = client.put("later", "kept").revision
        client.compact(later, physical=True)
    assert later > good
    one.follow(steps)
    one.check({**before, b"later": b"kept"})


@pytest.mark.long
def test_certificates_have_expired(one: Site, steps: list[Step]) -> None:
    one.write()
    before = one.content()
    authority = Authority(one.directory / "authority")
    hosts = [one.hosts["m1"]]
    old = authority.issue("old", hosts, days=-1)
    new = authority.issue("new", hosts, days=300)
    for source, name in (
        (authority.cert, "ca.pem"),
        (old.cert, "server.pem"),
        (old.key, "server.key"),
        (new.cert, "new.pem"),
        (new.key, "new.key"),
    ):
        shutil.copy(source, one.config / name)
    one.stop("m1")
    one.write_config(
        "m1",
        "client-transport-security:\n"
        f"  cert-file: {one.config}/server.pem\n  key-file: {one.config}/server.key\n",
    )
    path = one.config / "m1.yml"
    http = f"client-urls: http://{one.address('m1')}"
    path.write_text(path.read_text().replace(http, http.replace("http:", "https:")))
    assert one.start("m1")
    secure = f"https://{one.address('m1')}"
    one.run(f"export ENDPOINTS={secure}")
    one.follow(steps)
    with Client(secure, ca=str(one.config / "ca.pem")) as client:
        assert {each.key: each.value for each in client.read(prefix="").kvs} == before


@pytest.mark.long
def test_the_password_of_root_is_lost(one: Site, steps: list[Step]) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not at hand")
    one.write()
    before = one.content()
    for line in (
        "kvorumctl --endpoints=$ENDPOINTS user add root:nobody-knows",
        "kvorumctl --endpoints=$ENDPOINTS user grant-role root root",
        "kvorumctl --endpoints=$ENDPOINTS auth enable",
    ):
        output, code = one.run(line)
        assert code == 0, output
    one.follow(steps)
    assert one.run("kvorumctl --endpoints=$ENDPOINTS --user=root:new-password auth disable")[1] == 0
    one.check(before)


def test_a_downgrade_was_begun_by_mistake(one: Site, steps: list[Step]) -> None:
    one.write()
    before = one.content()
    until("the cluster has a version", lambda: HAS_VERSION in one.log("m1").read_text())
    with one.client() as client:
        client.maintenance.downgrade("3.6")
    one.follow(steps)
    one.check(before)


def etcd_flags(site: Site) -> list[str]:
    """Return the flags of an etcd that is the member m1, but for where it listens."""
    url = f"http://{site.hosts['m1']}:2380"
    return ["--name=m1", f"--initial-advertise-peer-urls={url}", f"--initial-cluster=m1={url}"]


@pytest.mark.long
def test_an_etcd_is_to_become_a_kvorum(tmp_path: Path, steps: list[Step]) -> None:
    with made_site(tmp_path / "site", 1) as site:
        with running_etcd(site.data / "etcd", *etcd_flags(site)) as etcd:
            for number in range(20):
                etcd.put(b"key/%d" % number, b"value")
        site.follow(steps)
        site.check({b"key/%d" % number: b"value" for number in range(20)})


def test_a_kvorum_is_to_become_an_etcd_again(one: Site, steps: list[Step]) -> None:
    one.write()
    before = one.content()
    one.run("export VERSION={}.{}".format(*chosen().version[:2]))
    one.follow(steps)
    hashes = [
        one.run(f"kvorumutl hashkv {path}")[0] for path in ("$DATA/m1", "$DATA/etcd/member/snap/db")
    ]
    assert hashes[0] == hashes[1]
    with running_etcd(one.data / "etcd", *etcd_flags(one)) as etcd:
        assert {key: etcd.get(key) for key in before} == before
