"""`member`: list, add, change and remove members of the cluster."""

from typing import Any

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.rpcs import Rpc
from kvorum.network.urls import url as parse_url
from kvorum.tools.cli.errors import BAD_ARGUMENTS, BAD_FEATURE, CommandError
from kvorum.tools.cli.output import ResultOutput, as_json, table_text
from kvorum.tools.cli.text import quoted
from kvorum.tools.cli.values import hexadecimal
from kvorum.tools.ctl.invocation import CtlInvocation

HEADS = ("ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner")


def list_all(invocation: CtlInvocation) -> None:
    """List all members."""
    consistency = invocation.text("consistency")
    if consistency not in ("l", "s"):
        raise CommandError(f'unknown consistency flag "{consistency}"', BAD_FEATURE)
    request = pb.MemberListRequest(linearizable=consistency == "l")
    with invocation.client() as client:
        answer = invocation.ask(client, rpcs.MEMBER_LIST, request, pb.MemberListResponse)
    output = invocation.output

    def simple(found: pb.MemberListResponse) -> None:
        for row in _rows(found):
            output.line(", ".join(row))

    output.show(
        answer,
        simple,
        fields=lambda found: _fields(output, found),
        table=lambda found: output.line(table_text(HEADS, _rows(found))),
        json=lambda found: _json(output, found),
    )


def add(invocation: CtlInvocation) -> None:
    """Add a member, and print the settings with which it has to start."""
    arguments = invocation.arguments
    if not arguments:
        raise CommandError("member name not provided", BAD_ARGUMENTS)
    if len(arguments) > 1:
        meant = (each for each in arguments if each.lower().startswith("http"))
        advice = "".join(f", did you mean --peer-urls={each}" for each in meant)
        raise CommandError(f"too many arguments{advice}", BAD_ARGUMENTS)
    name, urls = arguments[0], _peer_urls(invocation)
    request = pb.MemberAddRequest(peerURLs=urls, isLearner=invocation.switch("learner"))
    with invocation.client() as client:
        answer = invocation.ask(client, rpcs.MEMBER_ADD, request, pb.MemberAddResponse)
    output = invocation.output

    def simple(done: pb.MemberAddResponse) -> None:
        kind = " as learner " if done.member.isLearner else " "
        cluster = done.header.cluster_id
        output.line(f"Member {done.member.ID:16x} added{kind}to cluster {cluster:16x}\n")
        initial = ",".join(
            f"{name if each.ID == done.member.ID else each.name}={url}"
            for each in done.members
            for url in each.peerURLs
        )
        output.line(f"ETCD_NAME={quoted(name)}")
        output.line(f"ETCD_INITIAL_CLUSTER={quoted(initial)}")
        output.line(f"ETCD_INITIAL_ADVERTISE_PEER_URLS={quoted(invocation.text('peer-urls'))}")
        output.line('ETCD_INITIAL_CLUSTER_STATE="existing"')

    output.show(answer, simple, json=lambda done: _json(output, done))


def remove(invocation: CtlInvocation) -> None:
    """Remove a member."""
    member = _member(invocation)
    request = pb.MemberRemoveRequest(ID=member)
    _change(
        invocation, member, rpcs.MEMBER_REMOVE, request, pb.MemberRemoveResponse, "removed from"
    )


def update(invocation: CtlInvocation) -> None:
    """Change the peer URLs of a member."""
    member = _member(invocation)
    request = pb.MemberUpdateRequest(ID=member, peerURLs=_peer_urls(invocation))
    _change(invocation, member, rpcs.MEMBER_UPDATE, request, pb.MemberUpdateResponse, "updated in")


def promote(invocation: CtlInvocation) -> None:
    """Promote a learner to a voter."""
    member = _member(invocation)
    request = pb.MemberPromoteRequest(ID=member)
    _change(
        invocation, member, rpcs.MEMBER_PROMOTE, request, pb.MemberPromoteResponse, "promoted in"
    )


def _change(
    invocation: CtlInvocation, member: int, rpc: Rpc, request: Any, kind: Any, how: str
) -> None:
    with invocation.client() as client:
        answer = invocation.ask(client, rpc, request, kind)
    output = invocation.output
    output.show(
        answer,
        lambda done: output.line(f"Member {member:16x} {how} cluster {done.header.cluster_id:16x}"),
        json=lambda done: _json(output, done),
    )


def _member(invocation: CtlInvocation) -> int:
    if len(invocation.arguments) != 1:
        raise CommandError("member ID is not provided", BAD_ARGUMENTS)
    try:
        return hexadecimal(invocation.arguments[0])
    except ValueError as error:
        raise CommandError(
            f"bad member ID arg ({error}), expecting ID in Hex", BAD_ARGUMENTS
        ) from None


def _peer_urls(invocation: CtlInvocation) -> list[str]:
    text = invocation.text("peer-urls")
    if not text:
        raise CommandError("member peer urls not provided", BAD_ARGUMENTS)
    urls = text.split(",")
    for each in urls:
        try:
            parse_url(each)
        except ValueError as error:
            raise CommandError(str(error)) from None
    return urls


# Output formats.


def _rows(found: pb.MemberListResponse) -> list[tuple[str, ...]]:
    return [
        (
            f"{member.ID:x}",
            "started" if member.name else "unstarted",
            member.name,
            ",".join(member.peerURLs),
            ",".join(member.clientURLs),
            "true" if member.isLearner else "false",
        )
        for member in found.members
    ]


def _fields(output: ResultOutput, found: pb.MemberListResponse) -> None:
    output.header_fields(found.header)
    for member in found.members:
        output.id_field("ID", member.ID)
        output.field("Name", member.name)
        for url in member.peerURLs:
            output.field("PeerURL", url)
        for url in member.clientURLs:
            output.field("ClientURL", url)
        output.field("IsLearner", member.isLearner)
        output.line()


def _json(output: ResultOutput, answer: Any) -> dict[str, object]:
    """Return an answer for JSON; with `--hex`, ids are hexadecimal text."""
    shown = as_json(answer)
    if not output.is_hex:
        return shown
    header = answer.header
    shown["header"] = {
        **as_json(header),
        "cluster_id": f"{header.cluster_id:x}",
        "member_id": f"{header.member_id:x}",
    }
    if "member" in shown:
        shown["member"] = _hex_member(answer.member)
    shown["members"] = [_hex_member(each) for each in answer.members]
    return shown


def _hex_member(member: pb.Member) -> dict[str, object]:
    return {**as_json(member), "ID": f"{member.ID:x}"}
