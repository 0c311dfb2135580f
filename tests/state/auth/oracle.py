"""A real etcd with authentication: calls with a token, and what came of them."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvorum.api import errors
from tests.etcd import Etcd, running_etcd

OK = ""


class Guarded:
    """An etcd with the users `root` and `user`, whose passwords are their names."""

    def __init__(self, etcd: Etcd) -> None:
        self._address = etcd.address

    def call(self, method: str, token: str = "", **request: Any) -> tuple[str, dict[str, Any]]:
        """Return what a call was refused with, or OK, and its answer."""
        connection = http.client.HTTPConnection(self._address, timeout=20)
        headers = {"Authorization": token} if token else {}
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(request), headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        refused = OK if response.status == 200 else answer["message"]
        # Where 3.5.1 has another text.
        return refused.replace(
            "auth: revision in header is old", errors.AUTH_OLD_REVISION.text
        ), answer

    def log_in(self, name: str, password: str) -> tuple[str, str]:
        """Return what a login was refused with, or OK, and the token."""
        refused, answer = self.call("auth/authenticate", name=name, password=password)
        return refused, answer.get("token", "")


@contextmanager
def guarded_etcd(directory: Path, *flags: str) -> Iterator[Guarded]:
    """Run an etcd whose authentication is enabled."""
    with running_etcd(directory, "--bcrypt-cost=4", *flags) as etcd:
        guarded = Guarded(etcd)
        for name in ("root", "user"):
            etcd.ask("auth/user/add", name=name, password=name)
        etcd.ask("auth/role/add", name="root")
        etcd.ask("auth/user/grant", user="root", role="root")
        etcd.ask("auth/enable")
        yield guarded
