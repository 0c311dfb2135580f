"""The servers that a test may be for: ours, a real etcd, and either of them behind our gRPC proxy.

Whatever a client may rely on holds through the proxy too. Where the address that is asked is not
the member's own, a test says so with `member_behind`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.proxy.processes import running_proxy

DIRECT = ("kvorum", "etcd")
PROXIED = ("proxied-kvorum", "proxied-etcd")
RUNNING = (*DIRECT, *PROXIED)

# With an address to advertise, lists of members would name the proxy.
FLAGS = ("--advertise-client-url=",)
_MEMBERS: dict[str, str] = {}


@contextmanager
def running_server(kind: str, directory: Path, *flags: str) -> Iterator[str]:
    """Run a server of a kind on a data directory, and give the address that clients use."""
    running = running_etcd if kind.endswith("etcd") else running_kvorum
    with running(directory, *flags) as member:
        if kind not in PROXIED:
            yield member.address
            return
        with running_proxy("grpc-proxy", f"--endpoints={member.address}", *FLAGS) as proxy:
            _MEMBERS[proxy.address] = member.address
            try:
                yield proxy.address
            finally:
                del _MEMBERS[proxy.address]


def member_behind(address: str) -> str:
    """Return the address of the member that answers there, which is the same but for proxies."""
    return _MEMBERS.get(address, address)
