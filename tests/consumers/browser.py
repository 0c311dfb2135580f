"""Chromium without a window, driven over WebDriver, and a web server for the page it opens."""

import functools
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ports import held_port

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Page:
    """What a browser shows."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, url: str) -> None:
        _command(f"{self._session}/url", url=url)

    def text(self, selector: str) -> str:
        """Return the text of the first element that a selector finds."""
        script = "return document.querySelector(arguments[0]).innerText"
        found: str = _command(f"{self._session}/execute/sync", script=script, args=[selector])
        return found


def _command(address: str, method: str = "POST", **body: Any) -> Any:
    data = json.dumps(body).encode() if method == "POST" else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["value"]


@contextmanager
def running_browser(profile: Path) -> Iterator[Page]:
    """Run a browser for as long as the block takes; its profile is a new directory."""
    with held_port() as port:
        words = ["chromedriver", f"--port={port}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as driver:
            try:
                assert driver.stdout is not None
                assert any("started successfully" in line for line in driver.stdout)
                # What it prints is read all the time, so that it never waits for a full pipe.
                threading.Thread(target=driver.stdout.read, daemon=True).start()
                options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
                root = f"http://127.0.0.1:{port}/session"
                wanted = {"alwaysMatch": {"goog:chromeOptions": options}}
                session = f"{root}/{_command(root, capabilities=wanted)['sessionId']}"
                try:
                    yield Page(session)
                finally:
                    _command(session, "DELETE")
            finally:
                driver.terminate()


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Serve the files of a directory for as long as the block takes; return their URL."""
    handler = functools.partial(_Handler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()
