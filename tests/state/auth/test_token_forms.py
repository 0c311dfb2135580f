"""How a token comes with a call: in which metadata, with which prefix, broken in which way."""

from collections.abc import Iterator

import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests.state.auth.people import prepare
from tests.state.auth.servers import Both, running_both

FORMS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("token", "{token}"),),
    (("token", "Bearer {token}"),),
    (("token", "bearer {token}"),),
    (("token", "BEARER {token}"),),
    (("token", "Bearer  {token}"),),
    (("token", "Bearer Bearer {token}"),),
    (("token", "Bearer"),),
    (("token", "Bearer "),),
    (("token", ""),),
    (("token", " {token}"),),
    (("token", "{token} "),),
    (("authorization", "{token}"),),
    (("authorization", "Bearer {token}"),),
    (("authorization", "bearer {token}"),),
    (("authorization", "Basic {token}"),),
    (("authorization", ""),),
    # Only the first value counts, and `token` before `authorization`.
    (("token", "{token}"), ("token", "nonsense")),
    (("token", "nonsense"), ("token", "{token}")),
    (("token", "{token}"), ("authorization", "nonsense")),
    (("token", "nonsense"), ("authorization", "{token}")),
    (("authorization", "{token}"), ("token", "nonsense")),
    (("authorization", "nonsense"), ("token", "{token}")),
    (("token", ""), ("authorization", "{token}")),
    (("authorization", "{token}"), ("authorization", "nonsense")),
    (("authorization", "nonsense"), ("authorization", "{token}")),
    # Broken.
    (("token", "{name}"),),
    (("token", "{name}."),),
    (("token", ".{number}"),),
    (("token", "."),),
    (("token", "{name}.{number}.1"),),
    (("token", "{name}.0{number}"),),
    (("token", "{name}.+{number}"),),
    (("token", "{name}.-{number}"),),
    (("token", "{name}.0x{number}"),),
    (("token", "{name}.{number}_0"),),
    (("token", "{name}.1"),),
    (("token", "{name}.18446744073709551616"),),
    (("token", "{name}x.{number}"),),
    (("token", "ABCDEFGHIJKLMNOP.{number}"),),
    # Other metadata.
    (("username", "root"), ("password", "secret")),
    (("token-bin", "{token}"),),
    (("hasleader", "true"), ("token", "{token}")),
)
REQUESTS = (
    ("KV/Range", pb.RangeRequest(key=b"c")),
    ("KV/Put", pb.PutRequest(key=b"c")),
    ("Watch/Watch", pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"c"))),
    ("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=71)),
    ("Auth/AuthStatus", pb.AuthStatusRequest()),
    ("Auth/Authenticate", pb.AuthenticateRequest(name="reader", password="secret")),
    ("Cluster/MemberList", pb.MemberListRequest()),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("tokens")) as found:
        prepare(found)
        yield found


def filled(form: tuple[tuple[str, str], ...], token: str) -> list[tuple[str, str | bytes]]:
    name, number = token.split(".")
    values = [(key, value.format(token=token, name=name, number=number)) for key, value in form]
    return [(key, value.encode() if key.endswith("-bin") else value) for key, value in values]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms(both: Both, form: tuple[tuple[str, str], ...]) -> None:
    metadata = [filled(form, server.tokens["owner"][-1]) for server in both]
    for name, request in REQUESTS:
        both.check(name, request, metadata, form)  # type: ignore[arg-type]


def test_nobody_looks_at_tokens_while_authentication_is_off(both: Both) -> None:
    both.answer("Auth/AuthDisable", pb.AuthDisableRequest(), "root")
    for form in FORMS:
        metadata = [filled(form, server.tokens["owner"][-1]) for server in both]
        for name, request in REQUESTS:
            both.check(name, request, metadata, form)  # type: ignore[arg-type]
