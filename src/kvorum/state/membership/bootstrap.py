"""Bootstrap a new cluster, and check that a joining member has found the right cluster.

All members of a new cluster get the same list of names and peer URLs, and each writes the same
first entries into its log on its own. A joining member asks the others for the list of members, and
takes its id from their answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.state.membership.documents import MemberDocument, encode_member
from kvorum.state.membership.identity import member_id
from kvorum.state.membership.urls import UrlError, checked_urls

InitialCluster = Mapping[str, tuple[str, ...]]


class ClusterSettingsError(ValueError):
    """This member's cluster settings are inconsistent, or do not fit the existing cluster."""


def parse_initial_cluster(text: str) -> InitialCluster:
    """Return the peer URLs by name from `name=url,name=url`; a name may repeat."""
    urls: dict[str, list[str]] = {}
    for pair in filter(None, text.split(",")):
        name, _, url = pair.partition("=")
        urls.setdefault(name, []).append(url)
    try:
        return {name: checked_urls(each) for name, each in urls.items()}
    except UrlError as error:
        raise ClusterSettingsError(
            f"error setting up initial cluster: {error} (--initial-cluster={text})"
        ) from error


def cluster_text(cluster: InitialCluster) -> str:
    """Return the members in etcd's notation: `name=url,name=url`, sorted."""
    return ",".join(sorted(f"{name}={url}" for name, urls in cluster.items() for url in urls))


def initial_members(initial_cluster: InitialCluster, token: str) -> list[MemberDocument]:
    """Return the members of a new cluster, in ascending order of their ids."""
    members: dict[int, MemberDocument] = {}
    for name, urls in initial_cluster.items():
        identity = member_id(urls, token)
        if identity in members:
            raise ClusterSettingsError(
                f"{name} and {members[identity].name} have the same peer URLs {','.join(urls)}, "
                f"and so the same id {identity:x}; give each member its own"
            )
        if not identity:
            raise ClusterSettingsError(f"{name} gets 0 as its id; choose another token or URL")
        members[identity] = MemberDocument(identity, urls, name=name)
    return [members[identity] for identity in sorted(members)]


def check_initial_cluster(
    initial_cluster: InitialCluster,
    name: str,
    advertised: Sequence[str] | None = None,
    resolve: Callable[[str], str] = str,
) -> None:
    """Check that the list is consistent and fits this member, by its advertised URLs if given.

    `resolve` maps a URL to a canonical form for comparison.
    """
    if not initial_cluster:
        raise ClusterSettingsError(
            f'couldn\'t find local name "{name}" in the initial cluster configuration, '
            "which is empty; name all members in --initial-cluster"
        )
    if name not in initial_cluster:
        raise ClusterSettingsError(
            f'couldn\'t find local name "{name}" in the initial cluster configuration, '
            f"which has {', '.join(initial_cluster)}; --name has to be one of them"
        )
    every = [url for urls in initial_cluster.values() for url in urls]
    if twice := sorted({url for url in every if every.count(url) > 1}):
        raise ClusterSettingsError(
            f"initial cluster {cluster_text(initial_cluster)} has duplicate url: {twice[0]}"
        )
    if advertised is None:
        return
    own = initial_cluster[name]
    if not _same_urls(own, advertised, resolve):
        named, listed = ",".join(advertised), cluster_text({name: own})
        if missing := [url for url in own if url not in advertised]:
            problem = f"--initial-cluster has {cluster_text({name: tuple(missing)})} but missing "
            problem += f"from --initial-advertise-peer-urls={named}"
        else:
            missing = [url for url in advertised if url not in own]
            problem = f"--initial-advertise-peer-urls has {','.join(missing)} but missing "
            problem += f"from --initial-cluster={listed}"
        raise ClusterSettingsError(f"{problem}; both have to name the same URLs of this member")


def check_own_directory(
    members: Sequence[MemberDocument],
    local_id: int,
    name: str,
    advertised: Sequence[str],
    initial_cluster: InitialCluster,
) -> None:
    """Check that a directory's data does not belong to another member than the flags describe.

    A name may change, and so may URLs: one of the two must still be this member's, or the data must
    contain neither. But if neither is this member's, and one of them is another member's or the
    flags list this member's URLs under another name, then two processes would act as one member,
    which loses data.
    """
    own = next((each for each in members if each.id == local_id), None)
    if own is None or name == own.name or set(advertised) & set(own.peer_urls):
        return
    others = [each for each in members if each is not own]
    meant = [each for each in others if each.name == name or set(advertised) & set(each.peer_urls)]
    listed = [each for each, urls in initial_cluster.items() if set(urls) & set(own.peer_urls)]
    if not meant and not listed:
        return
    described = f"{name} at {','.join(advertised)}"
    if meant:
        described += f", which is member {meant[0].id:x}"
    raise ClusterSettingsError(
        f"the data directory is that of member {own.id:x}, {own.name or 'unnamed'} at "
        f"{','.join(own.peer_urls)}, but --name and --initial-advertise-peer-urls say {described}. "
        "Start each member on its own directory, never on a copy of another's; a new member starts "
        "on an empty one after 'etcdctl member add'. If this member has a new name and a new URL, "
        "start it with one of them first"
    )


def mismatch_text(own: int, foreign: int) -> str:
    """Return advice for a member of a new cluster whose peers all belong to another cluster."""
    return (
        f"cluster ID mismatch: every other member of --initial-cluster belongs to cluster "
        f"{foreign:x}, this one to {own:x}. Start it with the --initial-cluster-token and the "
        "--initial-cluster that they were first started with, on an empty --data-dir. To join a "
        "cluster that exists, run 'etcdctl member add', and use --initial-cluster-state=existing"
    )


def bootstrap_changes(members: Iterable[MemberDocument]) -> list[ConfChange]:
    """Return the changes in the first entries of a new cluster's log, from index 1 in term 1."""
    ordered = sorted(members, key=lambda each: each.id)
    return [ConfChange(ChangeType.ADD_NODE, each.id, encode_member(each)) for each in ordered]


def match_existing(
    initial_cluster: InitialCluster,
    existing: Sequence[MemberDocument],
    resolve: Callable[[str], str] = str,
) -> list[MemberDocument]:
    """Return this member's list with the ids of an existing cluster, in ascending order of ids.

    The list has to contain exactly the members of the cluster, with their peer URLs.
    """
    if len(existing) != len(initial_cluster):
        raise ClusterSettingsError(
            f"member count is unequal: the cluster has {len(existing)} members, "
            f"--initial-cluster has {len(initial_cluster)}. To add this member, run 'etcdctl "
            "member add' first, and start it with the --initial-cluster that it prints: every "
            "member of the cluster, and this one"
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
            raise ClusterSettingsError(
                f"PeerURLs: no match found for existing member ({member.id:x}, "
                f"{','.join(member.peer_urls)}) in --initial-cluster; it must list every member"
            )
    return members


def is_bootstrapped(existing: Iterable[MemberDocument], identity: int) -> bool:
    """Return whether an existing cluster knows this id as a member that has run before."""
    return any(member.id == identity and member.client_urls for member in existing)


def _same_urls(first: Sequence[str], second: Sequence[str], resolve: Callable[[str], str]) -> bool:
    if sorted(first) == sorted(second):
        return True
    return sorted(map(resolve, first)) == sorted(map(resolve, second))
