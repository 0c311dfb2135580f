"""One connection to each of two servers, over which both get the same requests, one by one."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.server.http.asking import Connection, Headers
from tests.server.http.comparing import Seen, seen
from tests.server.http.servers import Both, running_both, settle

ALL = {"key": "AA==", "range_end": "AA=="}


class Talk:
    """Connections to both, kept alive."""

    def __init__(self, both: Both) -> None:
        self.both = both
        self._ours, self._theirs = (Connection(address) for address in both)

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    def ask(self, path: str, body: bytes, headers: Headers | None = None) -> tuple[Seen, Seen]:
        """Make a request to both at the same time; return what counts of both answers."""
        connections = (self._ours, self._theirs)
        for each in connections:
            each.begin("POST", path, body, headers)
        ours, theirs = (seen(path, each.answer()) for each in connections)
        return ours, theirs

    def check(self, path: str, body: bytes, headers: Headers | None = None) -> Seen:
        """Make a request to both, and compare the answers."""
        ours, theirs = self.ask(path, body, headers)
        assert ours == theirs, f"{path} {body!r}: {ours}, expected {theirs}"
        return ours

    def say(self, path: str, **fields: Any) -> dict[str, Any]:
        """Make a well-formed request to both that succeeds, and compare; return the answer."""
        found = self.check(path, json.dumps(fields).encode())
        assert found.status == 200, (path, fields, found)
        answer: dict[str, Any] = json.loads(found.values[0])
        return answer

    def reset(self) -> None:
        """Empty both."""
        for alarm in self.say("/v3/maintenance/alarm").get("alarms", ()):
            self.say("/v3/maintenance/alarm", action="DEACTIVATE", **alarm)
        for lease in self.say("/v3/lease/leases").get("leases", ()):
            self.say("/v3/lease/revoke", ID=lease["ID"])
        self.say("/v3/kv/deleterange", **ALL)
        for user in self.say("/v3/auth/user/list").get("users", ()):
            self.say("/v3/auth/user/delete", name=user)
        for role in self.say("/v3/auth/role/list").get("roles", ()):
            self.say("/v3/auth/role/delete", role=role)


@contextmanager
def talking(directory: Path, *flags: str) -> Iterator[Talk]:
    """Run both, settled, and talk to them."""
    with ExitStack() as stack:
        talk = Talk(settle(stack.enter_context(running_both(directory, *flags))))
        stack.callback(talk.close)
        yield talk
