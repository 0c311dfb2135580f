"""A server whose authentication is enabled, with a few users, and calls in their names."""

from typing import Any

from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from kvorum.network.edge.interface import Metadata
from kvorum.state.apply import requests
from tests.server.rpc.harness import Harness

PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"


class Guarded(Harness):
    """Users are `root`, and `u`, who may read and write [a, b); passwords are their names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(bcrypt_cost=4, **options)
        for name in ("root", "u"):
            self.succeed("Auth/UserAdd", pb.AuthUserAddRequest(name=name, password=name))
        self.succeed("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="root", role="root"))
        self.succeed("Auth/RoleAdd", pb.AuthRoleAddRequest(name="r"))
        permission = Permission(permType=Permission.READWRITE, key=b"a", range_end=b"b")
        self.succeed(
            "Auth/RoleGrantPermission",
            pb.AuthRoleGrantPermissionRequest(name="r", perm=permission),
        )
        self.succeed("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="u", role="r"))
        self.succeed("Auth/AuthEnable", pb.AuthEnableRequest())

    def succeed(self, name: str, request: Message, token: str = "") -> Any:
        """Make a call that is not refused."""
        answer = self.ask(name, request, shown(token) if token else None)
        assert not isinstance(answer, Status), f"{name}: {answer}"
        return answer

    def log_in(self, name: str) -> str:
        """Return a new token of a user."""
        token: str = self.succeed(
            "Auth/Authenticate", pb.AuthenticateRequest(name=name, password=name)
        ).token
        return token

    def who(self, metadata: Metadata | None) -> tuple[str, int] | Status:
        """Return whom a put is proposed for, or why it is not proposed."""
        storage = self.member.replica.storage
        before = storage.last_index()
        answer = self.ask("KV/Put", pb.PutRequest(key=b"a"), metadata)
        if storage.last_index() == before:
            assert isinstance(answer, Status)
            return answer
        (entry,) = storage.entries(before + 1, storage.last_index() + 1, 1 << 30)
        caller = requests.decode(entry.data)[3]
        return caller.user, caller.revision

    def token_to_come(self, after: int) -> str:
        """Return the token of a login whose entry comes after so many others from now on.

        Nothing is drawn here, so all tokens begin alike.
        """
        return f"{'a' * 16}.{self.member.state.applied + after}"


def shown(token: str) -> Metadata:
    """Return the metadata of a call with a token."""
    return {"token": token.encode()}
