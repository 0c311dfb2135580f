"""How a cluster begins, and how a member that joins one knows it is the right one.

All members of a new cluster are given the same list of names and peer URLs, and each writes the
same first entries into its log by itself. A member that joins asks the others who they are, and
takes its id from their answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kvorum.membership.documents import Member, encode_member
from kvorum.membership.identity import member_id
from kvorum.membership.urls import UrlError, checked_urls
from kvorum.raft.changes import ChangeType, ConfChange

InitialCluster = Mapping[str, tuple[str, ...]]


class BootstrapError(ValueError):
    """What this member was told about the cluster does not fit."""


def parse_initial_cluster(text: str) -> InitialCluster:
    """Return the peer URLs by name from `name=url,name=url`; a name may repeat."""
    urls: dict[str, list[str]] = {}
    for pair in filter(None, text.split(",")):
        name, _, url = pair.partition("=")
        urls.setdefault(name, []).append(url)
    try:
        return {name: checked_urls(each) for name, each in urls.items()}
    except UrlError as error:
        raise BootstrapError(f"initial cluster {text!r}: {error}") from error


def initial_members(initial_cluster: InitialCluster, token: str) -> list[Member]:
    """Return the members of a new cluster, in ascending order of their ids."""
    members: dict[int, Member] = {}
    for name, urls in initial_cluster.items():
        identity = member_id(urls, token)
        if identity in members:
            raise BootstrapError(
                f"{name} and {members[identity].name} have the same peer URLs {','.join(urls)}, "
                f"and so the same id {identity:x}; give each member its own"
            )
        if not identity:
            raise BootstrapError(f"{name} gets 0 as its id; choose another token or URL")
        members[identity] = Member(identity, urls, name=name)
    return [members[identity] for identity in sorted(members)]


def check_initial_cluster(
    initial_cluster: InitialCluster,
    name: str,
    advertised: Sequence[str] | None = None,
    resolve: Callable[[str], str] = str,
) -> None:
    """Check the list against itself and this member, by the URLs it advertises if given.

    `resolve` maps a URL to the form in which two of them are compared.
    """
    if not initial_cluster:
        raise BootstrapError("initial cluster unset and no discovery URL found")
    if name not in initial_cluster:
        raise BootstrapError(
            f'couldn\'t find local member "{name}" in the initial cluster configuration, '
            f"which has {', '.join(initial_cluster)}"
        )
    every = [url for urls in initial_cluster.values() for url in urls]
    if twice := sorted({url for url in every if every.count(url) > 1}):
        raise BootstrapError(f"initial cluster has duplicate url {twice[0]}")
    if advertised is None:
        return
    own = initial_cluster[name]
    if not _same_urls(own, advertised, resolve):
        raise BootstrapError(
            f"--initial-cluster has {name} at {','.join(own)}, but "
            f"--initial-advertise-peer-urls is {','.join(advertised)}; they must be the same"
        )


def bootstrap_changes(members: Iterable[Member]) -> list[ConfChange]:
    """Return what the first entries of a new cluster's log hold, from index 1 and in term 1."""
    ordered = sorted(members, key=lambda each: each.id)
    return [ConfChange(ChangeType.ADD_NODE, each.id, encode_member(each)) for each in ordered]


def match_existing(
    initial_cluster: InitialCluster,
    existing: Sequence[Member],
    resolve: Callable[[str], str] = str,
) -> list[Member]:
    """Return this member's list with the ids of an existing cluster, in ascending order of them.

    Every member of the cluster has to be in the list with its peer URLs, and nobody else.
    """
    if len(existing) != len(initial_cluster):
        raise BootstrapError(
            f"member count is unequal: the cluster has {len(existing)} members, "
            f"--initial-cluster has {len(initial_cluster)}"
        )
    unmatched = dict(initial_cluster)
    members = []
    for member in sorted(existing, key=lambda each: each.id):
        for name, urls in unmatched.items():
            if _same_urls(urls, member.peer_urls, resolve):
                members.append(replace(member, peer_urls=urls, name=name, client_urls=()))
                del unmatched[name]
                break
        else:
            raise BootstrapError(
                f"PeerURLs: no match found for existing member ({member.id:x}, "
                f"{','.join(member.peer_urls)}) in --initial-cluster; it must list every member"
            )
    return members


def is_bootstrapped(existing: Iterable[Member], identity: int) -> bool:
    """Tell whether a cluster that answers knows this id as a member that has run before."""
    return any(member.id == identity and member.client_urls for member in existing)


def _same_urls(first: Sequence[str], second: Sequence[str], resolve: Callable[[str], str]) -> bool:
    if sorted(first) == sorted(second):
        return True
    return sorted(map(resolve, first)) == sorted(map(resolve, second))
