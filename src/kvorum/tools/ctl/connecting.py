"""Make clients from the global flags: endpoints, TLS, credentials."""

from __future__ import annotations

import sys
from typing import NamedTuple, TypeVar

from kvorum.client.credentials import TlsOptions
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.options import FOREVER
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, BAD_CONNECTION, CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kvorum.tools.ctl.invocation import CtlInvocation

T = TypeVar("T")


class Secrets(NamedTuple):
    """TLS files and credentials for this cluster, or for a mirror's destination."""

    tls: TlsOptions
    is_plain: bool = True
    """Whether clients use TLS only if a certificate or an endpoint asks for it."""
    user: str = ""
    password: str = ""
    token: str = ""


def connect(invocation: CtlInvocation, endpoints: Sequence[str] | None = None) -> Client:
    """Return a client of these endpoints, or of those that the global flags name."""
    chosen = endpoints_of(invocation) if endpoints is None else endpoints
    return client_of(invocation, chosen, secrets_of(invocation))


def connect_all(invocation: CtlInvocation, kind: Callable[..., T], count: int) -> list[T]:
    """Return several clients of a kind, for the endpoints that the global flags name."""
    secrets, endpoints = secrets_of(invocation), endpoints_of(invocation)
    arguments = _arguments(invocation, endpoints, secrets)
    return [kind(**arguments) for _ in range(count)]


def client_of(invocation: CtlInvocation, endpoints: Sequence[str], secrets: Secrets) -> Client:
    """Return a client that connects and logs in with its first call."""
    return Client(**_arguments(invocation, endpoints, secrets))


def logged_in(client: Client) -> Client:
    """Log a client in if it has a user, and return it; close it if the login fails."""
    try:
        client.log_in()
    except BaseException:
        client.close()
        raise
    return client


def _arguments(
    invocation: CtlInvocation, endpoints: Sequence[str], secrets: Secrets
) -> dict[str, Any]:
    """Return the checked constructor arguments, which both kinds of client share."""
    if not any(endpoints):
        raise CommandError("etcdclient: no available endpoints", BAD_CONNECTION)
    received, sent = (invocation.number(f"max-{kind}-bytes") for kind in ("recv", "request"))
    if 0 < received < sent:
        raise CommandError(
            f"gRPC message recv limit ({received} bytes) must be greater than send limit "
            f"({sent} bytes)",
            BAD_CONNECTION,
        )
    is_secure = not secrets.is_plain or secrets.tls.is_given
    try:
        _check_files(secrets.tls)
        addresses = [_with_scheme(each, is_secure=is_secure) for each in endpoints if each]
    except (ValueError, OSError) as error:
        raise CommandError(str(error), BAD_ARGUMENTS) from error
    dial_seconds_max = invocation.seconds("dial-timeout")
    if dial_seconds_max <= 0:
        # For etcdctl, 0 or less means no limit.
        dial_seconds_max = FOREVER
    # Without a password the client does not log in, and its calls carry no user.
    is_user = bool(secrets.user and secrets.password and not secrets.token)
    return {
        "endpoints": addresses,
        "user": secrets.user if is_user else "",
        "password": secrets.password if is_user else "",
        "token": secrets.token,
        **secrets.tls._asdict(),
        "timeout": dial_seconds_max,
        "connect_timeout": dial_seconds_max,
    }


def endpoints_of(invocation: CtlInvocation) -> list[str]:
    """Return the endpoints from SRV records, or if there are none, from `--endpoints`."""
    return _discovered(invocation) or [each.strip() for each in invocation.texts("endpoints")]


def _discovered(invocation: CtlInvocation) -> list[str]:
    domain = invocation.text("discovery-srv")
    if not domain:
        return []
    from kvorum.client.finding import srv_endpoints

    try:
        found = srv_endpoints(domain, invocation.text("discovery-srv-name"))
    except ValueError as error:
        raise CommandError(str(error)) from error
    if invocation.switch("insecure-discovery"):
        return found
    kept = []
    for each in found:
        if each.startswith("http://"):
            sys.stderr.write(f'ignoring discovered insecure endpoint "{each}"\n')
        else:
            kept.append(each)
    return kept


def secrets_of(invocation: CtlInvocation) -> Secrets:
    """Return the TLS files and credentials of the global flags; prompt at most once."""
    if invocation.secrets is None:
        invocation.secrets = _secrets(invocation)
    return invocation.secrets


def _secrets(invocation: CtlInvocation) -> Secrets:
    for name in ("cert", "key", "cacert"):
        if name in invocation.given.changed and not invocation.text(name):
            raise CommandError(f"empty string is passed to --{name} option", BAD_ARGUMENTS)
    token = invocation.text("auth-jwt-token")
    user, password = "", ""
    if not token:
        user, password = user_of(invocation.text("user"), invocation.text("password"), "Password: ")
    return Secrets(
        TlsOptions(
            invocation.text("cacert"),
            invocation.text("cert"),
            invocation.text("key"),
            invocation.switch("insecure-skip-tls-verify"),
        ),
        is_plain=invocation.switch("insecure-transport"),
        user=user,
        password=password,
        token=token,
    )


def user_of(user: str, password: str, prompt: str) -> tuple[str, str]:
    """Return name and password: given separately, joined by a colon, or prompted for."""
    if not user:
        return "", ""
    if password:
        return user, password
    name, is_given, rest = user.partition(":")
    if is_given:
        return name, rest
    from kvorum.tools.ctl.prompts import ask_password

    return user, ask_password(prompt)


def _with_scheme(endpoint: str, *, is_secure: bool) -> str:
    address = parse_endpoint(endpoint)
    if address.is_secure is not None or address.port is None or not is_secure:
        return endpoint
    return f"https://{endpoint}"


def _check_files(tls: TlsOptions) -> None:
    """Refuse unusable certificates and keys before the first connection."""
    if bool(tls.cert) != bool(tls.key):
        raise ValueError(
            f"KeyFile and CertFile must both be present[key: {tls.key}, cert: {tls.cert}]"
        )
    for path in (tls.ca, tls.cert, tls.key):
        if path:
            _check_readable(path)
    if not tls.ca and not tls.cert:
        return
    import ssl

    context = ssl.create_default_context()
    try:
        if tls.ca:
            context.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise ValueError(f"--cacert {tls.ca} has no certificate in PEM ({error.reason})") from None
    try:
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except ssl.SSLError as error:
        raise ValueError(
            f"--cert {tls.cert} and --key {tls.key} are no certificate and its key in PEM "
            f"({error.reason or error})"
        ) from None


def _check_readable(path: str) -> None:
    from pathlib import Path

    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise ValueError(f"open {path}: {(error.strerror or str(error)).lower()}") from None
