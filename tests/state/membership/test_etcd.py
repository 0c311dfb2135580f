"""A real etcd and our cluster take the same changes: answers, ids, rows and snapshots agree."""

import http.client
import json
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.errors import MEMBER_BAD_URLS, Status
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.messages import ConfState, Snapshot
from kvorum.state.membership import MemberDocument, Membership, UrlError, Version
from kvorum.state.membership.documents import encode_conf_state, encode_member, encode_promotion
from kvorum.state.membership.identity import member_id
from kvorum.state.membership.reconfiguration import may_remove
from kvorum.state.membership.urls import checked_urls, kept_urls
from kvorum.state.membership.v2_store import snapshot_data
from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap import WriteSnap, load_newest
from kvorum.storage.wal import valid_snapshots
from tests.database import Database
from tests.etcd import Etcd, is_target, running_etcd
from tests.waiting import WAIT_SECONDS_MAX

FILES = RealFiles()


def ask(etcd: Etcd, method: str, **request: Any) -> dict[str, Any] | tuple[int, str]:
    """Return the answer, or the code and text of the refusal."""
    connection = http.client.HTTPConnection(etcd.address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("POST", f"/v3/cluster/member/{method}", json.dumps(request))
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    return answer if response.status == 200 else (answer["code"], answer["message"])


def member_of(fields: dict[str, Any]) -> MemberDocument:
    return MemberDocument(
        int(fields["ID"]),
        tuple(fields.get("peerURLs", ())),
        fields.get("isLearner", False),
        fields.get("name", ""),
        tuple(fields.get("clientURLs", ())),
    )


def members_of(etcd: Etcd) -> list[MemberDocument]:
    answer = ask(etcd, "list")
    assert isinstance(answer, dict)
    return [member_of(fields) for fields in answer["members"]]


class Both:
    """Proposes to etcd, and applies to our cluster what etcd must have put into its log."""

    def __init__(self, etcd: Etcd, cluster: Membership) -> None:
        self.etcd = etcd
        self.cluster = cluster
        (self.founder,) = members_of(etcd)
        cluster.apply(self._addition(self.founder))
        cluster.set_attributes(self.founder.id, self.founder.name, self.founder.client_urls)

    def _addition(self, member: MemberDocument) -> ConfChange:
        kind = ChangeType.ADD_LEARNER_NODE if member.is_learner else ChangeType.ADD_NODE
        return ConfChange(kind, member.id, encode_member(member))

    def _compare(self, theirs: dict[str, Any] | tuple[int, str], ours: Status | None) -> None:
        assert (None if isinstance(theirs, dict) else theirs) == (
            None if ours is None else (int(ours.code), ours.text)
        )
        assert members_of(self.etcd) == self.cluster.members

    def add_learner(self, *urls: str) -> MemberDocument | None:
        theirs = ask(self.etcd, "add", peerURLs=urls, isLearner=True)
        # A refusal depends on the URLs; of its id nobody learns.
        member = MemberDocument(12345, urls, is_learner=True)
        if isinstance(theirs, dict):
            member = member_of(theirs["member"])
        self._compare(theirs, self.cluster.apply(self._addition(member)))
        return member if isinstance(theirs, dict) else None

    def remove(self, identity: int) -> None:
        ours = may_remove(
            self.cluster.members,
            {self.founder.id},
            identity,
            is_active=identity == self.founder.id,
        )
        if ours is None:
            ours = self.cluster.apply(ConfChange(ChangeType.REMOVE_NODE, identity))
        self._compare(ask(self.etcd, "remove", ID=identity), ours)

    def update(self, identity: int, *urls: str) -> None:
        context = encode_member(MemberDocument(identity, urls))
        ours = self.cluster.apply(ConfChange(ChangeType.UPDATE_NODE, identity, context))
        self._compare(ask(self.etcd, "update", ID=identity, peerURLs=urls), ours)

    def promote(self, identity: int) -> None:
        context = encode_promotion(identity)
        ours = self.cluster.validate(ConfChange(ChangeType.ADD_NODE, identity, context))
        self._compare(ask(self.etcd, "promote", ID=identity), ours)


def test_the_same_changes_and_refusals(tmp_path: Path) -> None:
    database = Database()
    with running_etcd(tmp_path / "etcd") as etcd:
        both = Both(etcd, Membership(database.backend, 5, 1))
        founder = both.founder.id
        learner = both.add_learner("http://127.0.0.1:5", "http://127.0.0.1:4")
        assert learner is not None and learner.peer_urls[0] == "http://127.0.0.1:4"
        assert both.add_learner("http://127.0.0.1:4") is None  # taken
        assert both.add_learner("http://127.0.0.1:6") is None  # too many learners
        both.promote(founder)
        both.promote(4711)
        both.update(4711, "http://127.0.0.1:7")
        both.update(founder, "http://127.0.0.1:5")  # the learner's
        both.update(founder, "http://127.0.0.1:9", "http://127.0.0.1:8")  # kept in this order
        both.remove(4711)
        both.remove(founder)  # the only voter
        both.remove(learner.id)
        both.remove(learner.id)
        assert both.add_learner("http://127.0.0.1:4") is not None
    members, removed = both.cluster.members, both.cluster.removed
    assert len(members) == 2 and removed == [learner.id]
    file = (tmp_path / "etcd" / "member" / "snap" / "db").read_bytes()
    for member in members:
        if not is_target():
            # 3.5 stores neither client URLs nor the update of peer URLs.
            stored = both.founder if member.id == founder else member
            member = replace(stored, client_urls=())
        assert b"%x%b" % (member.id, encode_member(member)) in file
    assert b"%xremoved" % learner.id in file
    state = ConfState((founder,), tuple(each.id for each in members if each.is_learner))
    assert b"confState" + encode_conf_state(state) in file


def test_an_added_member_has_the_id_of_its_second(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        date = http_date(etcd)
        answer = ask(etcd, "add", peerURLs=["http://h:2", "http://h:1"], isLearner=True)
        assert isinstance(answer, dict)
        added, until = int(answer["member"]["ID"]), http_date(etcd)
    urls = ["http://h:1", "http://h:2"]
    assert added in [member_id(urls, "", second) for second in range(date - 1, until + 2)]


def http_date(etcd: Etcd) -> int:
    """Ask etcd for the time of its machine, in seconds."""
    connection = http.client.HTTPConnection(etcd.address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("GET", "/version")
        response = connection.getresponse()
        response.read()
        return int(parsedate_to_datetime(response.headers["Date"]).timestamp())
    finally:
        connection.close()


URLS = [
    ["http://h:1"],
    [" http://h:1 "],
    ["HTTP://h:1"],
    ["http://H:1"],
    ["https://[::1]:1", "http://10.0.0.1:1"],
    ["http://h:"],
    ["http://:1"],
    ["http://h"],
    ["http://h:1/"],
    ["http://h:1/path"],
    ["http://h:x"],
    ["http://h:1:2"],
    ["http://::1:1"],
    ["http://user@h:1"],
    ["http://h:1?query"],
    ["http://a b:1"],
    ["http://h:1\n"],
    ["http://h\n:1"],
    ["ftp://h:1"],
    ["h:1"],
    ["//h:1"],
    [""],
    [],
    ["http://h:1", "x"],
    ["unix://h:1"],
    ["unixs://h:1"],
]


def test_the_same_urls_are_accepted(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        for number, texts in enumerate(URLS, 10):
            # An id depends on the second and the URLs, and no id comes back.
            urls = [text.replace(":1", f":{number}") for text in texts]
            theirs = ask(etcd, "add", peerURLs=urls, isLearner=True)
            try:
                ours = kept_urls(urls)
                assert checked_urls(urls) == ours
            except UrlError:
                assert theirs == (int(MEMBER_BAD_URLS.code), MEMBER_BAD_URLS.text), urls
                continue
            assert isinstance(theirs, dict), (urls, theirs)
            added = member_of(theirs["member"])
            assert added.peer_urls == ours
            assert isinstance(ask(etcd, "remove", ID=added.id), dict)


ODD_URLS = [
    *("http://\u00e9:1", "http://%C3%A9:1", "http://\u200b:1", "http://%zz:1", "http://%41:1"),
    *("http://a%20b:1", "http://a%2fb:1", "http://[::1%25eth0]:1", "http://[fe80::1%eth0]:1"),
    *('http://a"b:1', "http://a<b>:1", "http://a:\uff11", "http://a_b:1", "http://*:1"),
    *("http://u:p@a:1", "http://u%zz@a:1", "http://\u00fc@a:1", "http://a:1?\u00e9", "http://a:1#"),
    *("http://a:1#\u00e9", "http://a,b:1", "http://a\\b:1", "http://a^b:1", "http://a`b:1"),
    *("http://a{b}:1", "http://a|b:1", "http://a!$&'()*+,;=:1", "http://[::1", "http://a\x7f:1"),
    *("http://a:+1", "http://a:" + "9" * 50, "http://xn--9ca:1", "http://\u00e9\u00e8@\u00e9:1"),
]


@pytest.mark.skipif(not is_target(), reason="etcd 3.5.1 does not answer some of these requests")
def test_what_is_not_ascii_is_kept_or_refused_as_etcd_does(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        for number, text in enumerate(ODD_URLS, 10):
            url = text.replace(":1", f":{number}")
            theirs = ask(etcd, "add", peerURLs=[url], isLearner=True)
            try:
                ours = kept_urls([url])
            except UrlError:
                assert theirs == (int(MEMBER_BAD_URLS.code), MEMBER_BAD_URLS.text), url
                continue
            assert isinstance(theirs, dict), (url, theirs)
            added = member_of(theirs["member"])
            assert added.peer_urls == ours
            assert isinstance(ask(etcd, "remove", ID=added.id), dict)


@pytest.mark.parametrize("url", ["unix://name", "unix:///a/path.sock", "unixs://name"])
def test_files_need_no_port(url: str) -> None:
    assert checked_urls([url]) == (url,)


def test_etcd_starts_from_our_snapshot_data(tmp_path: Path) -> None:
    directory = tmp_path / "etcd"
    with running_etcd(directory, "--snapshot-count=5") as etcd:
        added = ask(etcd, "add", peerURLs=["http://127.0.0.1:4"], isLearner=True)
        assert isinstance(added, dict)
        gone = int(added["member"]["ID"])
        ask(etcd, "remove", ID=gone)
        ask(etcd, "add", peerURLs=["http://127.0.0.1:5"], isLearner=True)
        for number in range(20):
            etcd.put(b"key", b"%d" % number)
        members = members_of(etcd)
    # The same members in a cluster of ours, whose data takes the place of etcd's.
    cluster = Membership(Database().backend, 5, 1)
    gone_context = encode_member(MemberDocument(gone, is_learner=True))
    cluster.apply(ConfChange(ChangeType.ADD_LEARNER_NODE, gone, gone_context))
    cluster.apply(ConfChange(ChangeType.REMOVE_NODE, gone))
    for member in members:
        kind = ChangeType.ADD_LEARNER_NODE if member.is_learner else ChangeType.ADD_NODE
        assert cluster.apply(ConfChange(kind, member.id, encode_member(member))) is None
    cluster.set_version(Version(3, 5))
    snap = directory / "member" / "snap"
    valid = {(each.index, each.term) for each in valid_snapshots(FILES, str(snap.parent / "wal"))}
    newest, _ = load_newest(FILES, str(snap), valid)
    assert newest is not None and newest.conf_state.learners
    # A name that only our data has shows that etcd reads it.
    (learner,) = cluster.learners
    cluster.set_attributes(learner.id, "renamed", ("http://renamed:1",))
    data = snapshot_data(cluster)
    ours = Snapshot(newest.index, newest.term, newest.conf_state, data)
    for path in snap.glob("*.snap"):
        path.unlink()
    WriteSnap(str(snap), ours).run(FILES)
    with running_etcd(directory) as etcd:
        listed = {member.id: member for member in members_of(etcd)}
        assert [each.id for each in cluster.members] == sorted(listed)
        for member in cluster.members:
            assert listed[member.id].peer_urls == member.peer_urls
            assert listed[member.id].is_learner == member.is_learner
        if not is_target():
            # Newer ones read the members from their database.
            assert listed[learner.id].name == "renamed"
        assert isinstance(ask(etcd, "remove", ID=gone), tuple)
