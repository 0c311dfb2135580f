"""Start a pod's member, found or join its cluster, and remove members before the cluster shrinks.

    member.py start MEMBERS          run `kvorum`; MEMBERS is a file: NAME=PEER-URL,... of all pods
    member.py shrink NAME REPLICAS   remove the members NAME-<n> whose n is REPLICAS or more

The settings are `kvorum`'s and `kvorumctl`'s own variables. The data directory alone decides who a
pod is:

- A pod with a log starts with it, and asks nobody. The server itself refuses the log of a member
  that the cluster removed, so no restart adds a member.
- A pod without a log joins as a learner while a quorum answers. If the cluster knows the pod as a
  member that has run, the pod lost its volume and with it its votes, so it first has that member
  removed.
- A pod without a log, while no quorum answers, founds the cluster only after every other pod of
  MEMBERS has said that it has no log either. Otherwise it waits: others may have data, and a member
  that forgot its votes must not vote again.

This process stays the parent of the server, passes signals on, and promotes a learner.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "1"))
"""The time between two questions; tests shorten it."""
ANSWER_SECONDS_MAX = 2.0
NO_LOG_PATH = "/without-a-log/"

Member = dict[str, Any]


class Voice:
    """Says on the standard error what this process does; a repeated text is said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, text: str) -> None:
        """Say a text."""
        if text not in self._said:
            self._said.add(text)
            sys.stderr.write(f"member.py: {text}\n")
            sys.stderr.flush()


say = Voice()


def ask(*arguments: str) -> dict[str, Any] | None:
    """Run a command of `kvorumctl`; return its answer, or None after saying why there is none."""
    done = subprocess.run(  # noqa: S603
        ["kvorumctl", *arguments, "--write-out=json", "--hex"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        say(f"kvorumctl {' '.join(arguments[:2])}: {' '.join(done.stderr.split())}")
        return None
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def members() -> list[Member] | None:
    """Return the members that a quorum agrees on, or None if no quorum answers."""
    answer = ask("member", "list", f"--command-timeout={ANSWER_SECONDS_MAX:g}s")
    return None if answer is None else answer["members"]


def member_at(url: str, found: list[Member]) -> Member | None:
    """Return the member with a peer URL."""
    return next((each for each in found if url in each["peerURLs"]), None)


def name_of(member: Member) -> str:
    """Return a member's name; one that never ran has only the host of its peer URL."""
    return member.get("name") or (urlsplit(member["peerURLs"][0]).hostname or "").split(".")[0]


class FoundingRound:
    """Asks the other pods of a new cluster whether they have no log, and answers the same question.

    A pod ends its round when it knows of every other pod, and every other pod of it: nobody is left
    behind with the question.
    """

    def __init__(self, name: str, urls: dict[str, str], listen_url: str) -> None:
        listen = urlsplit(listen_url)
        self._name = name
        self._port = listen.port or 80
        self._hosts = {
            each: urlsplit(url).hostname or "" for each, url in urls.items() if each != name
        }
        self._without_log: set[str] = set()
        asked_by = self._asked_by = set[str]()
        others = self._hosts.keys()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asker = self.path.removeprefix(NO_LOG_PATH)
                self.send_response(200 if asker in others else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if asker in others:
                    asked_by.add(asker)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer((listen.hostname or "", self._port), Handler)
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def is_complete(self) -> bool:
        """Ask the pods that have not answered yet; return whether all pods know of each other."""
        for name in sorted(self._hosts.keys() - self._without_log):
            connection = HTTPConnection(self._hosts[name], self._port, timeout=ANSWER_SECONDS_MAX)
            try:
                connection.request("GET", NO_LOG_PATH + self._name)
                if connection.getresponse().status == 200:
                    self._without_log.add(name)
            except (OSError, HTTPException):
                pass
            finally:
                connection.close()
        missing = sorted(self._hosts.keys() - (self._without_log & self._asked_by))
        if missing:
            say(f"no quorum answers; to found a new cluster, waits for {', '.join(missing)}")
        return not missing

    def close(self) -> None:
        """Give the port to the server."""
        self._server.shutdown()
        self._server.server_close()


def place(members_file: Path) -> dict[str, str]:
    """Wait until this pod, which has no log, may start; return the variables to start with."""
    name, url = os.environ["ETCD_NAME"], os.environ["ETCD_INITIAL_ADVERTISE_PEER_URLS"]
    founding = members_file.read_text().strip()
    urls = dict(each.split("=", 1) for each in founding.split(","))
    round_ = FoundingRound(name, urls, os.environ["ETCD_LISTEN_METRICS_URLS"])
    try:
        while True:
            found = members()
            if found is not None:
                cluster = join(name, url, found)
                if cluster:
                    return {
                        "ETCD_INITIAL_CLUSTER": cluster,
                        "ETCD_INITIAL_CLUSTER_STATE": "existing",
                    }
            elif name in urls and round_.is_complete():
                say("founds a new cluster: no pod has a log")
                return {"ETCD_INITIAL_CLUSTER": founding, "ETCD_INITIAL_CLUSTER_STATE": "new"}
            time.sleep(PAUSE_SECONDS)
    finally:
        round_.close()


def join(name: str, url: str, found: list[Member]) -> str:
    """Take a step towards joining; return the members to start with, or "" if steps are left."""
    own = member_at(url, found)
    if own is None:
        say(f"asks the cluster to add {name} as a learner")
        ask("member", "add", name, f"--peer-urls={url}", "--learner")
        return ""
    if own.get("clientURLs"):
        say(f"this pod has lost the log of member {own['ID']}: asks the cluster to remove it")
        ask("member", "remove", own["ID"])
        return ""
    say(f"starts as member {own['ID']}, which has never run")
    return ",".join(
        f"{name if each is own else each.get('name') or each['ID']}={peer_url}"
        for each in found
        for peer_url in each["peerURLs"]
    )


def start(members_file: Path) -> int:
    """Run the server until it ends; return its exit code, or 0 if a signal asked for the end."""
    server: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if server is None:
            raise SystemExit(0)
        server.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    variables = dict(os.environ)
    if not any(Path(variables["ETCD_DATA_DIR"], "member", "wal").glob("*.wal")):
        variables |= place(members_file)
    server = subprocess.Popen(["kvorum"], env=variables)  # noqa: S607
    promote(variables["ETCD_INITIAL_ADVERTISE_PEER_URLS"], server)
    code = server.wait()
    if code in (-signal.SIGINT, -signal.SIGTERM):
        return 0
    return code if code >= 0 else 128 - code


def promote(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Ask the cluster to promote this member, until it votes, is removed, or its process ends."""
    while server.poll() is None:
        found = members()
        own = member_at(url, found) if found is not None else None
        if found is not None and (own is None or not own.get("isLearner")):
            return
        if own is not None and own.get("clientURLs") and ask("member", "promote", own["ID"]):
            say(f"member {own['ID']} votes")
            return
        try:
            server.wait(PAUSE_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def shrink(name: str, replicas: int) -> int:
    """Remove the members of the pods that will go, the highest ordinal first."""
    if replicas < 1:
        say("a cluster keeps at least one member; nothing is removed")
        return 1
    while True:
        found = members()
        if found is not None:
            going = {
                int(match[1]): each
                for each in found
                if (match := re.fullmatch(re.escape(name) + r"-(\d+)", name_of(each)))
                and int(match[1]) >= replicas
            }
            if not going:
                return 0
            ordinal = max(going)
            say(f"asks the cluster to remove {name}-{ordinal}, member {going[ordinal]['ID']}")
            if ask("member", "remove", going[ordinal]["ID"]) is not None:
                continue
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        sys.exit(start(Path(sys.argv[2])))
    sys.exit(shrink(sys.argv[2], int(sys.argv[3])))
