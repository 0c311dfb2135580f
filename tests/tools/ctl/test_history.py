"""`history`: every version that there is, from the last compaction on."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools.ctl.store import Store


def test_every_version_is_listed(store: Store) -> None:
    lease = store.client.lease(600)
    store.client.put("h/key", "one")
    store.client.put("h/other", "not this")
    store.client.put("h/key", b"\xff\x1b[2J", lease=lease.id)
    store.client.delete("h/key")
    store.client.put("h/key", "two")
    last = store.revision
    (told,) = store.lines("history", "h/key", "-w", "json")
    assert told["key"] == "h/key"
    assert told["revision"] == last
    versions = told["versions"]
    assert [each["change"] for each in versions] == ["put", "put", "delete", "put"]
    assert [each["revision"] for each in versions] == [last - 4, last - 2, last - 1, last]
    assert versions[0]["value"] == "one"
    assert versions[1]["value_base64"] == "/xtbMko="
    assert versions[1]["lease"] == f"{lease.id:x}"
    assert versions[1]["version"] == 2
    assert versions[3]["create_revision"] == last

    out = store.run("history", "h/key").out.decode()
    assert out.split() == [
        *("REVISION", "CHANGE", "VERSION", "LEASE", "VALUE"),
        *(str(last - 4), "put", "1", '"one"'),
        *(str(last - 2), "put", "2", f"{lease.id:x}", '"\\xff\\x1b[2J"'),
        *(str(last - 1), "delete"),
        *(str(last), "put", "1", '"two"'),
    ]
    (newest,) = store.lines("history", "h/key", "-w", "json", "--limit", "1")
    assert newest["versions"] == versions[-1:]


def test_what_is_compacted_is_gone_but_for_the_version_of_then(store: Store) -> None:
    for value in ("1", "2", "3"):
        store.client.put("h/compacted", value)
    compacted = store.revision - 1
    store.client.put("h/else", "x")
    store.client.compact(compacted)
    (told,) = store.lines("history", "h/compacted", "-w", "json")
    assert told["compact_revision"] == compacted
    assert [each["value"] for each in told["versions"]] == ["2", "3"]
    store.client.delete("h/compacted")
    store.client.put("h/else", "y")
    store.client.compact(store.revision)
    (told,) = store.lines("history", "h/compacted", "-w", "json")
    assert told["versions"] == []


def test_a_key_that_never_was_has_no_history(store: Store) -> None:
    store.client.put("h/else", "x")
    assert store.lines("history", "h/never", "-w", "json")[0]["versions"] == []
    assert store.run("history", "h/never").out == b"REVISION  CHANGE  VERSION  LEASE  VALUE\n"


def test_misuse_is_reported(store: Store) -> None:
    assert b"needs one argument" in store.run("history", code=128).err
    assert b"--limit -1" in store.run("history", "k", "--limit=-1", code=128).err
    assert b"not supported" in store.run("history", "k", "-w", "protobuf", code=4).err


CHANGES = st.lists(st.sampled_from(["put", "put elsewhere", "delete", "compact"]), max_size=12)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=CHANGES)
def test_a_history_is_what_happened_since_the_compaction(store: Store, changes: list[str]) -> None:
    store.client.delete("h/model")
    store.client.put("h/else", "x")
    store.client.compact(store.revision)
    told: list[tuple[int, str, str | None]] = []
    for number, change in enumerate(changes):
        match change:
            case "put":
                told.append((store.client.put("h/model", str(number)).revision, "put", str(number)))
            case "delete":
                done = store.client.delete("h/model")
                if done.deleted:
                    told.append((done.revision, "delete", None))
            case "put elsewhere":
                store.client.put("h/else", str(number))
            case "compact":
                store.client.put("h/else", "another revision")
                store.client.compact(store.revision)
                told = told[-1:] if told and told[-1][1] == "put" else []
    (found,) = store.lines("history", "h/model", "-w", "json")
    versions = [(each["revision"], each["change"], each.get("value")) for each in found["versions"]]
    assert versions == told
