"""A store for one test, and the source of such stores."""

from concurrent.futures import Future
from typing import TYPE_CHECKING

from kvorum.testing.access import CLIENT_SECONDS, Access, last_lines
from kvorum.testing.options import server_flags
from kvorum.testing.worker_process import Answer, WorkerProcess, wait_for_response

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client
    from kvorum.testing.certificates import Certificates
    from kvorum.testing.options import StoreOptions

KINDS_MAX = 4
"""The number of kinds, the last used ones, for which the next store is requested ahead."""


class Store(Access):
    """A fresh, empty store for one test: one member, in memory."""

    def __init__(
        self,
        worker: WorkerProcess,
        number: int,
        url: str,
        certificates: "Certificates | None",
        *,
        auth: bool,
    ) -> None:
        super().__init__((url,), certificates, auth=auth)
        self.url: str = url
        """The client URL."""
        self._worker = worker
        self._number = number

    @property
    def address(self) -> str:
        """The host and port, for clients that take no URL."""
        return self.url.partition("://")[2]

    def client(
        self, *, user: str | None = None, password: str = "", timeout: float = CLIENT_SECONDS
    ) -> "Client":
        """Return a client of the store, which is closed at the end of the test at the latest.

        With auth the client logs in as `root`, unless another user is given; with "" it does not
        log in.
        """
        return self._open(self.urls, user, password, timeout)

    def async_client(
        self, *, user: str | None = None, password: str = "", timeout: float = CLIENT_SECONDS
    ) -> "AsyncClient":
        """Return a client for the event loop that first uses it, closed with that loop."""
        return self._open_async(self.urls, user, password, timeout)

    @property
    def log(self) -> str:
        """The member's log so far."""
        text: str = self._worker.request("log", number=self._number)["text"]
        return text

    def logs(self) -> list[tuple[str, str]]:
        """Return the sections of a failed test's report: titles and texts."""
        return [("kvorum log", last_lines(self.log))]

    def end(self) -> None:
        """Release the store, and close all its clients."""
        self.end_clients()
        self._worker.send("drop", number=self._number)


class Stores:
    """Provides fresh stores. While a test uses one, the next of its kind is already requested."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._requested: dict[StoreOptions, Future[Answer]] = {}

    def take(self, options: "StoreOptions", certificates: "Certificates | None") -> Store:
        """Return a fresh store; raise WorkerError, with the reason, if none can start."""
        asked = self._requested.pop(options, None) or self._request_store(options, certificates)
        found = wait_for_response(asked)
        self._requested[options] = self._request_store(options, certificates)
        if len(self._requested) > KINDS_MAX:
            self._requested.pop(next(iter(self._requested))).add_done_callback(self._drop_store)
        return Store(self._worker, found["number"], found["url"], certificates, auth=options.auth)

    def _request_store(
        self, options: "StoreOptions", certificates: "Certificates | None"
    ) -> "Future[Answer]":
        flags = server_flags(options, certificates)
        return self._worker.start_request("take", flags=flags, auth=options.auth)

    def _drop_store(self, asked: "Future[Answer]") -> None:
        found = asked.result()
        if "number" in found:
            self._worker.send("drop", number=found["number"])
