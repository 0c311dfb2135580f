"""Fetch HTTP pages of members on behalf of a proxy's clients.

Threads ask the members in a fixed order, random at the start, until one answers; see
`kvorum.process.thread_executor`.
"""

import http.client
import ssl
from collections.abc import Callable, Sequence

from kvorum.client.endpoints import Address
from kvorum.client.grpc.trust import server_context
from kvorum.network.edge.upstream import UpstreamTls
from kvorum.process.thread_executor import ThreadExecutor

PAGE_SECONDS_MAX = 5.0
"""Time for a member to answer."""
PAGE_BYTES_MAX = 64 * 1024 * 1024


class MemberPages:
    """Fetches pages of the members at these addresses, trying them in order."""

    def __init__(
        self, addresses: Sequence[Address], tls: UpstreamTls | None, thread_executor: ThreadExecutor
    ) -> None:
        # Unix sockets serve no plain HTTP.
        self._addresses = [each for each in addresses if each.port is not None]
        self._tls = tls
        self._thread_executor = thread_executor

    def fetch(self, path: str, take_page: Callable[[bytes | None], None]) -> None:
        """Fetch a page and call `take_page` with it, or with None if no member has it."""
        self._thread_executor.run(lambda: self._page(path), take_page)

    def _page(self, path: str) -> bytes | None:
        for address in self._addresses:
            try:
                connection = self._connection(address)
            except (OSError, ValueError):
                continue
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                if answer.status == http.client.OK:
                    return answer.read(PAGE_BYTES_MAX)
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()
        return None

    def _connection(self, address: Address) -> http.client.HTTPConnection:
        host, port = address.host, address.port
        is_secure = address.is_secure or (address.is_secure is None and self._tls is not None)
        if not is_secure:
            return http.client.HTTPConnection(host, port, timeout=PAGE_SECONDS_MAX)
        tls = self._tls or UpstreamTls(server_name="")
        context = server_context(tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=PAGE_SECONDS_MAX, context=context)
