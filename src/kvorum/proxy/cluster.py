"""MemberList at a proxy: it returns proxies instead of members, so that clients stay with proxies.

Without an advertised URL the proxy forwards the call to the cluster. With a resolver prefix it
returns all registered proxies that the caller may read; otherwise only itself. Like etcd's, the
answer has no header, and its members have no ids.
"""

import json
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.ranges import prefix_end
from kvorum.client import rpcs
from kvorum.network.edge.interface import Metadata
from kvorum.network.edge.upstream import End
from kvorum.proxy.interface import status_of
from kvorum.proxy.routes import Routes
from kvorum.proxy.settings import ProxySettings

_PATH: Final = rpcs.MEMBER_LIST.path


def registration_prefix(settings: ProxySettings) -> bytes:
    """Return the prefix, with the namespace, of the keys of all registered proxies."""
    return settings.namespace + settings.resolver_prefix.encode() + b"/"


class MemberLists:
    """Serves MemberList."""

    def __init__(self, routes: Routes, settings: ProxySettings) -> None:
        self._routes = routes
        self._settings = settings

    def serve(self, call: int, message: bytes, metadata: Metadata | None) -> None:
        """Answer a call, or forward it to a member."""
        sent = () if metadata is None else list(metadata.items())
        settings, routes = self._settings, self._routes
        if not settings.advertise_client_url:
            routes.forward(call, _PATH, message, sent)
            return
        if not settings.resolver_prefix:
            routes.replies.append((call, self._answer([])))
            return
        prefix = registration_prefix(settings)
        request = pb.RangeRequest(key=prefix, range_end=prefix_end(prefix), serializable=True)

        def take_answer(answer: bytes | End) -> None:
            if isinstance(answer, bytes):
                found = pb.RangeResponse.FromString(answer).kvs
                members = [_member(kv.value) for kv in found]
                proxies = [member for member in members if member is not None]
                routes.replies.append((call, self._answer(proxies)))
            elif answer[0] == Code.PERMISSION_DENIED:
                routes.replies.append((call, self._answer([])))
            else:
                routes.replies.append((call, status_of(answer)))

        routes.start_unary_for(
            call, rpcs.RANGE.path, request.SerializeToString(), sent, take_answer
        )

    def _answer(self, proxies: list[pb.Member]) -> bytes:
        if not proxies:
            settings = self._settings
            urls = [settings.advertise_client_url]
            proxies = [pb.Member(name=settings.host_name, clientURLs=urls)]
        answer: bytes = pb.MemberListResponse(members=proxies).SerializeToString()
        return answer


def _member(value: bytes) -> pb.Member | None:
    """Return the proxy that a registration describes; None if it is malformed."""
    try:
        registered = json.loads(value)
        described = json.loads(registered.get("Metadata") or "{}")
        return pb.Member(name=str(described.get("name", "")), clientURLs=[str(registered["Addr"])])
    except (ValueError, KeyError, AttributeError, TypeError, DecodeError):
        return None
