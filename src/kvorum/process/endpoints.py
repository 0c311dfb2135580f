"""HTTP endpoints about the process: `/version`, `/metrics`, `/debug/vars`, `/debug/pprof/`.

The pprof endpoints are for developers: they show the threads' stacks and a profile of the loop.
They exist only with `--enable-pprof`, or at log level debug.
"""

import asyncio
import gzip
import io
import json
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvorum.member.member import Member
from kvorum.server.http.http import JSON, TEXT, HttpEndpoint, HttpFront, HttpRequest
from kvorum.server.peer.cluster.answers import version_document
from kvorum.server.telemetry.exposition import content_type, takes_gzip
from kvorum.server.telemetry.metrics import Scrapes

if TYPE_CHECKING:
    from cProfile import Profile

PROFILE_SECONDS_DEFAULT = 5.0
PROFILE_SECONDS_MAX = 60.0
PROFILE_LINES = 60

PAGE_SECONDS = 1.0
PAGES_PER_PERIOD = 5
"""How often per `PAGE_SECONDS` the metrics page is rendered; an occasional scrape is current."""


class RenderedPage:
    """Limits how often an expensive public page is rendered.

    Further requests get the last rendering, which is at most a second old.
    """

    def __init__(self, write: Callable[[], bytes], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._period_ends = 0.0
        self._left = 0
        self._text = b""
        self._compressed: bytes | None = None

    def text(self) -> bytes:
        """Return the page."""
        now = self._clock()
        if now >= self._period_ends:
            self._period_ends = now + PAGE_SECONDS
            self._left = PAGES_PER_PERIOD
        if self._left:
            self._left -= 1
            self._text, self._compressed = self._write(), None
        return self._text

    def compressed(self) -> bytes:
        """Return the page, compressed with gzip."""
        text = self.text()
        if self._compressed is None:
            self._compressed = gzip.compress(text, 1)
        return self._compressed


class PublicEndpoints:
    """Serves the version, metrics and debug endpoints of the process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        front: HttpFront,
        member: Member,
        metrics: Callable[[], bytes],
        scrapes: Scrapes,
        arguments: Sequence[str],
        *,
        profiling: bool,
    ) -> None:
        self._front = front
        self._member = member
        self._metrics = RenderedPage(metrics, member.clock)
        self._scrapes = scrapes
        self._arguments = arguments
        self._loop = loop
        self._profile: Profile | None = None
        front.add("/version", HttpEndpoint(self._version))
        front.add("/metrics", HttpEndpoint(self._show_metrics, methods=(), on_metrics=True))
        front.add("/debug/vars", HttpEndpoint(self._variables))
        if profiling:
            front.add("/debug/pprof/", HttpEndpoint(self._stacks))
            front.add("/debug/pprof/profile", HttpEndpoint(self._begin_profile))

    def _version(self, request: HttpRequest) -> None:
        self._front.respond(request.call, 200, [JSON], version_document(self._member))

    def _show_metrics(self, request: HttpRequest) -> None:
        headers = [("content-type", content_type(request.headers.get("accept", "")))]
        scrapes, status = self._scrapes, 500
        scrapes.in_flight += 1
        try:
            if takes_gzip(request.headers.get("accept-encoding", "")):
                headers.insert(0, ("content-encoding", "gzip"))
                body = self._metrics.compressed()
            else:
                body = self._metrics.text()
            status = 200
        finally:
            scrapes.in_flight -= 1
            scrapes.by_status[status] += 1
        self._front.respond(request.call, status, headers, body)

    def _variables(self, request: HttpRequest) -> None:
        status = self._member.replica.node.status()
        text = json.dumps(
            {
                "cmdline": ["kvorum", *self._arguments],
                "file_descriptor_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "raft.status": json.loads(status.json()),
            }
        )
        headers = [("content-type", "application/json; charset=utf-8")]
        self._front.respond(request.call, 200, headers, text.encode())

    def _stacks(self, request: HttpRequest) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        lines: list[str] = []
        for ident, frame in sys._current_frames().items():
            lines.append(f"thread {names.get(ident, ident)}:")
            lines += (line.rstrip("\n") for line in traceback.format_stack(frame))
        self._front.respond(request.call, 200, [TEXT], "\n".join([*lines, ""]).encode())

    def _begin_profile(self, request: HttpRequest) -> None:
        """Profile the loop for the requested time, then answer."""
        try:
            seconds = float(request.query.get("seconds", [PROFILE_SECONDS_DEFAULT])[0])
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= PROFILE_SECONDS_MAX:
            self._front.refuse(
                request.call, 400, f"seconds must be a number up to {PROFILE_SECONDS_MAX:.0f}"
            )
            return
        if self._profile is not None:
            self._front.refuse(request.call, 503, "another profile is being taken")
            return
        import cProfile

        self._profile = cProfile.Profile()
        # Enable the profile in the loop's own thread; another thread may take this turn.
        self._loop.call_soon(self._profile.enable)
        timer = self._loop.call_later(seconds, self._end_profile, request.call)

        def cancel() -> None:
            timer.cancel()
            self._loop.call_soon(self._end_profile, None)

        self._front.keep_open(request.call, cancel)

    def _end_profile(self, call: int | None) -> None:
        assert self._profile is not None
        self._profile.disable()
        out = io.StringIO()
        if call is not None:
            import pstats

            pstats.Stats(self._profile, stream=out).sort_stats("tottime").print_stats(PROFILE_LINES)
            self._front.respond(call, 200, [TEXT], out.getvalue().encode())
        self._profile = None
