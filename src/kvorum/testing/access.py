"""A test's access to its servers: URLs, credentials, and clients that end with the test."""

from typing import TYPE_CHECKING

from kvorum.testing.options import PASSWORD, USER

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client
    from kvorum.testing.certificates import Certificates
    from kvorum.testing.deferred import DeferredAsyncClient

CLIENT_SECONDS = 5.0
AUTH_SECONDS_MAX = 60.0
"""To hash a password, a member starts a process, which takes a while on a busy machine."""
REPORTED_LINES_MAX = 100
"""The number of log lines that the report of a failed test shows."""


def last_lines(text: str) -> str:
    """Return the last lines of a log, for a report."""
    lines = text.split("\n")
    left = len(lines) - REPORTED_LINES_MAX
    return "\n".join([f"({left} lines before)", *lines[left:]]) if left > 0 else text


def enable_auth(client: "Client") -> None:
    """Enable auth, with the user `root` alone."""
    client.auth.add_user(USER, PASSWORD)
    client.auth.add_role("root")
    client.auth.grant_role(USER, "root")
    client.auth.enable()


class Access:
    """The common part of stores and clusters."""

    def __init__(
        self, urls: tuple[str, ...], certificates: "Certificates | None", *, auth: bool
    ) -> None:
        self.urls: tuple[str, ...] = urls
        """The client URLs of the members."""
        self.certificates: Certificates | None = certificates
        """The files for TLS; None without TLS."""
        self.user: str = USER if auth else ""
        """A user with all permissions; empty without auth."""
        self.password: str = PASSWORD if auth else ""
        self._clients: list[Client] = []
        self._deferred_clients: list[DeferredAsyncClient] = []

    def _open(
        self, urls: tuple[str, ...], user: str | None, password: str, seconds: float
    ) -> "Client":
        from kvorum.client import Client

        ca, cert, key = self._files()
        name, secret = (self.user, self.password) if user is None else (user, password)
        client = Client(
            urls, user=name, password=secret, ca=ca, cert=cert, key=key, timeout=seconds
        )
        self._clients.append(client)
        return client

    def _open_async(
        self, urls: tuple[str, ...], user: str | None, password: str, seconds: float
    ) -> "AsyncClient":
        from kvorum.testing.deferred import DeferredAsyncClient

        ca, cert, key = self._files()
        name, secret = (self.user, self.password) if user is None else (user, password)
        client = DeferredAsyncClient(
            urls, user=name, password=secret, ca=ca, cert=cert, key=key, timeout=seconds
        )
        self._deferred_clients.append(client)
        return client

    def _files(self) -> tuple[str, str, str]:
        files = self.certificates
        return (files.ca, files.cert, files.key) if files else ("", "", "")

    def end_clients(self) -> None:
        """Close all clients that this object created."""
        for client in self._clients:
            client.close()
        for deferred in self._deferred_clients:
            deferred.end()
        self._clients.clear()
        self._deferred_clients.clear()
