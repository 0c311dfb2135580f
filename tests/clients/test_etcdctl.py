"""Every command of `etcdctl` that concerns a single member, asked of ours and of a real etcd.

Both begin empty, so that their revisions are the same; what they print must be the same too.
"""

import re

import pytest

from tests.clients.etcdctl import Outcome, answer, run, session

pytestmark = pytest.mark.timeout(60)

PLAIN = (
    ("put a 1", ""),
    ("put b 2", ""),
    ("put c 3", ""),
    ("put a 4 --prev-kv", ""),
    ("put a --ignore-value --prev-kv", ""),
    ("put missing --ignore-value", ""),
    ("put missing x --ignore-lease", ""),
    ("put a x --lease=1234", ""),
    ("put", "from standard input"),
    ("get a", ""),
    ("get a --hex", ""),
    ("get a --print-value-only", ""),
    ("get a c", ""),
    ("get --prefix ''", ""),
    ("get --prefix '' --keys-only", ""),
    ("get --prefix '' --count-only --write-out=fields", ""),
    ("get --from-key b", ""),
    ("get --prefix '' --limit=2", ""),
    ("get --prefix '' --order=DESCEND --sort-by=KEY", ""),
    ("get --prefix '' --order=ASCEND --sort-by=VALUE", ""),
    ("get --prefix '' --order=ASCEND --sort-by=MODIFY", ""),
    ("get --prefix '' --order=DESCEND --sort-by=CREATE", ""),
    ("get --prefix '' --order=DESCEND --sort-by=VERSION", ""),
    ("get a --rev=2", ""),
    ("get a --rev=1", ""),
    ("get a --rev=1000", ""),
    ("get a --consistency=s", ""),
    ("del missing", ""),
    ("del b --prev-kv", ""),
    ("del --prefix c --prev-kv", ""),
    ("put d1 x", ""),
    ("put d2 y", ""),
    ("del d1 d3 --prev-kv", ""),
    ("put e1 x", ""),
    ("del --from-key e", ""),
    ("txn", 'value("a") = "4"\n\nput a 5\nget a\n\nput a 6\n\n'),
    ("txn", 'mod("a") > "0"\nversion("a") > "1"\n\nget a\ndel a\n\nget a\n\n'),
    ("txn", 'create("new") = "0"\n\nput new n\n\nget new\n\n'),
    ("txn", 'lease("new") = "0"\n\nput new m\nput new n\n\n\n'),
    ("compaction 6", ""),
    ("compaction 6", ""),
    ("compaction 1000", ""),
    ("compaction 9 --physical", ""),
    ("get a --rev=3", ""),
    ("lease grant 0x", ""),
    ("lease timetolive 4d2", ""),
    ("lease revoke 4d2", ""),
    ("lease keep-alive 4d2 --once", ""),
    ("lease list", ""),
    ("alarm list", ""),
    ("alarm disarm", ""),
    ("auth status", ""),
    ("user list", ""),
    ("role list", ""),
    ("move-leader 1", ""),
)


def _split(line: str) -> list[str]:
    return [word.strip("'") for word in line.split(" ")]


@pytest.mark.long
def test_commands_print_the_same(kvorum: str, etcd: str) -> None:
    for line, text in PLAIN:
        ours, theirs = (run(address, *_split(line), text=text) for address in (kvorum, etcd))
        assert _comparable(ours) == _comparable(theirs), f"etcdctl {line}"


def _comparable(outcome: Outcome) -> Outcome:
    """Leave out what differs by its nature: the ids of cluster and member, and the term."""
    hidden = re.sub(r'("(?:ClusterID|MemberID|RaftTerm)" : )\d+', r"\1...", outcome.output)
    return outcome._replace(
        output=re.sub(r"\b[0-9a-f]{13,16}\b", "...", hidden),
        error=re.sub(r"\b[0-9a-f]{13,16}\b", "...", outcome.error),
    )


def test_lease_life(server: str) -> None:
    granted = run(server, "lease", "grant", "100").output
    found = re.fullmatch(r"lease ([0-9a-f]+) granted with TTL\(100s\)\n", granted)
    assert found, granted
    lease = found[1]
    assert run(server, "put", "leased", "x", f"--lease={lease}").output == "OK\n"
    told = run(server, "lease", "timetolive", lease, "--keys").output
    granted = rf"lease {lease} granted with TTL\(100s\), remaining\(\d+s\)"
    assert re.fullmatch(rf"{granted}, attached keys\(\[leased\]\)\n", told)
    kept = run(server, "lease", "keep-alive", lease, "--once").output
    assert kept == f"lease {lease} keepalived with TTL(100)\n"
    assert run(server, "lease", "list").output == f"found 1 leases\n{lease}\n"
    assert run(server, "lease", "revoke", lease).output == f"lease {lease} revoked\n"
    assert run(server, "get", "leased").output == ""


@pytest.mark.long
def test_lease_is_kept_alive_until_interrupted(server: str) -> None:
    # Renewed at a third of its time; a busy machine may take long for the first.
    lease = run(server, "lease", "grant", "12").output.split()[1]
    with session(server, "lease", "keep-alive", lease) as keeping:
        for _ in range(2):
            assert keeping.hear() == f"lease {lease} keepalived with TTL(12)"
        keeping.interrupt()


def test_watch_interactively(server: str) -> None:
    with session(server, "watch", "-i") as watching:
        watching.say("watch --prefix --prev-kv w")
        watching.say("progress")
        assert watching.hear() == "progress notify: 1"
        for command in ("put w1 a", "put w1 b", "put other x", "del w1"):
            run(server, *command.split())
        events = [watching.hear() for _ in range(13)]
    created, changed = ["PUT", "w1", "a"], ["PUT", "w1", "a", "w1", "b"]
    assert events == [*created, *changed, "DELETE", "w1", "b", "w1", ""]


def test_watch_from_a_revision(server: str) -> None:
    for value in ("1", "2", "3"):
        run(server, "put", "k", value)
    with session(server, "watch", "k", "--rev=3") as watching:
        assert [watching.hear() for _ in range(6)] == ["PUT", "k", "2", "PUT", "k", "3"]


def test_watch_from_a_compacted_revision(kvorum: str, etcd: str) -> None:
    ended = []
    for address in (kvorum, etcd):
        for value in ("1", "2", "3"):
            run(address, "put", "k", value)
        run(address, "compaction", "3")
        ended.append(run(address, "watch", "k", "--rev=2"))
    assert ended[0] == ended[1]
    assert ended[0].code != 0


def test_txn_interactively(server: str) -> None:
    told = run(server, "txn", "-i", text='version("t") = "0"\n\nput t 1\n\n\n').output
    assert told.endswith("SUCCESS\n\nOK\n")


def test_lock_is_held_by_one(server: str) -> None:
    with session(server, "lock", "mutex") as first:
        held = first.hear()
        assert re.fullmatch(r"mutex/[0-9a-f]+", held)
        with session(server, "lock", "mutex") as second:
            first.interrupt()
            assert re.fullmatch(r"mutex/[0-9a-f]+", second.hear())
            second.interrupt()
    assert run(server, "lock", "mutex", "echo", "in the lock").output == "in the lock\n"


def test_elect_one_leader_after_the_other(server: str) -> None:
    with session(server, "elect", "office", "first") as first:
        assert re.fullmatch(r"office/[0-9a-f]+", first.hear())
        assert first.hear() == "first"
        with session(server, "elect", "-l", "office") as observer:
            assert re.fullmatch(r"office/[0-9a-f]+", observer.hear())
            assert observer.hear() == "first"
            with session(server, "elect", "office", "second") as second:
                first.interrupt()
                assert re.fullmatch(r"office/[0-9a-f]+", second.hear())
                assert second.hear() == "second"
                assert re.fullmatch(r"office/[0-9a-f]+", observer.hear())
                assert observer.hear() == "second"


def test_endpoints_and_members(kvorum: str, etcd: str) -> None:
    listed = [answer(address, "member", "list") for address in (kvorum, etcd)]
    for members, address in zip(listed, (kvorum, etcd), strict=True):
        (member,) = members["members"]
        assert member["name"] == "default"
        assert member["clientURLs"] == [f"http://{address}"]
    assert listed[0].keys() == listed[1].keys()
    assert "is healthy" in run(kvorum, "endpoint", "health").output
    (status,) = answer(kvorum, "endpoint", "status")
    told = status["Status"]
    assert told["leader"] == told["header"]["member_id"]
    assert told["raftAppliedIndex"] == told["raftIndex"] > 0
    assert told["dbSize"] >= told["dbSizeInUse"] > 0
    (hashed,) = answer(kvorum, "endpoint", "hashkv")
    (real,) = answer(etcd, "endpoint", "hashkv")
    assert hashed["HashKV"]["hash"] == real["HashKV"]["hash"]
    assert run(kvorum, "defrag").output.startswith("Finished defragmenting etcd member")


@pytest.mark.long
@pytest.mark.parametrize("command", ["datascale", pytest.param("perf", marks=pytest.mark.campaign)])
@pytest.mark.timeout(120)
def test_check(kvorum: str, command: str) -> None:
    # The verdict depends on the machine; that it runs to its end and cleans up does not.
    told = run(kvorum, "check", command, "--load=s")
    assert "PASS" in told.output or "FAIL" in told.output, told
    assert answer(kvorum, "get", "--prefix", "").get("count", 0) == 0


def test_mirror_in_both_directions(kvorum: str, etcd: str) -> None:
    for source, destination in ((kvorum, etcd), (etcd, kvorum)):
        run(source, "put", "mirror/before", source)
        prefix = ("--prefix=mirror/", f"--dest-prefix=from-{source}/")
        with (
            session(source, "make-mirror", *prefix, destination),
            session(destination, "watch", "--prefix", f"from-{source}/", "--rev=1") as arriving,
        ):
            assert [arriving.hear() for _ in range(3)] == ["PUT", f"from-{source}/before", source]
            run(source, "put", "mirror/after", "x")
            assert [arriving.hear() for _ in range(3)] == ["PUT", f"from-{source}/after", "x"]
            run(source, "del", "mirror/before")
            assert [arriving.hear() for _ in range(2)] == ["DELETE", f"from-{source}/before"]
