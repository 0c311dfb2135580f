"""A client of a discovery service: makes three kinds of calls at any of its servers.

The client tries the next server if one is unreachable, and logs in again if the service rejects
its token. Every other failure is an exception, and the caller decides about retries.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.dialer.links import error_text
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.network.urls import split_host_port
from kvorum.process.discovery.channel import Channel, DiscoveryCall, ServiceAddress, connect

RANGE = "/etcdserverpb.KV/Range"
PUT = "/etcdserverpb.KV/Put"
WATCH = "/etcdserverpb.Watch/Watch"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
NEEDS_LOGIN = (errors.INVALID_AUTH_TOKEN, errors.AUTH_OLD_REVISION, errors.USER_EMPTY)
"""Errors for an outdated token, or for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Endpoints, time limits, TLS and login of a discovery service."""

    endpoints: Sequence[str]
    """`host:port`, URLs with http or https, or unix sockets."""
    dial_seconds: float
    request_seconds: float
    ping_seconds: float
    ping_timeout_seconds: float
    security: DialSettings | None
    """TLS for endpoints without a scheme; None: only `https` and `unixs` endpoints use TLS."""
    user: str
    password: str
    token: str
    """The token to send if there is no user to log in."""
    request_bytes_max: int
    answer_bytes_max: int


class LoginError(Exception):
    """The service rejects this user and password."""


class Client:
    """Makes calls to the service over one connection at a time, opened on demand."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._credentials = TlsCredentials(settings.security or DialSettings(), lambda _: None)
        self._addresses = [
            parse_endpoint(each, is_secure=settings.security is not None)
            for each in settings.endpoints
        ]
        self._channel: Channel | None = None
        self._token = settings.token.encode()

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Read keys; raise StatusError or LoginError."""
        return pb.RangeResponse.FromString(await self._ask(RANGE, request.SerializeToString()))

    async def put(self, request: pb.PutRequest) -> pb.PutResponse:
        """Write a key; raise StatusError or LoginError."""
        return pb.PutResponse.FromString(await self._ask(PUT, request.SerializeToString()))

    async def next_change(self, request: pb.WatchCreateRequest) -> pb.WatchResponse:
        """Return the first response with changes; raise StatusError or LoginError."""
        body = pb.WatchRequest(create_request=request).SerializeToString()
        call = await self._begin(WATCH, body, None)
        while True:
            response = pb.WatchResponse.FromString(await call.message())
            if response.compact_revision:
                raise StatusError(errors.COMPACTED)
            if response.canceled:
                raise StatusError(Status(Code.UNAVAILABLE, response.cancel_reason))
            if response.events:
                # The stream is no longer needed, and only closing the connection ends it.
                self.close()
                return response

    def close(self) -> None:
        """End the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _ask(self, path: str, request: bytes) -> bytes:
        seconds = self._settings.request_seconds
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._answer(path, request)
                except StatusError as error:
                    if error.status not in NEEDS_LOGIN:
                        raise
                    self.close()
                    return await self._answer(path, request)
        except TimeoutError:
            self.close()
            raise StatusError(errors.CONTEXT_DEADLINE_EXCEEDED) from None

    async def _answer(self, path: str, request: bytes) -> bytes:
        call = await self._begin(path, request, self._settings.request_seconds)
        return await call.message()

    async def _begin(self, path: str, request: bytes, seconds_max: float | None) -> DiscoveryCall:
        if len(request) > self._settings.request_bytes_max:
            text = f"trying to send message larger than max ({len(request)} vs. "
            text += f"{self._settings.request_bytes_max})"
            raise StatusError(Status(Code.RESOURCE_EXHAUSTED, text))
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._connect()
            await self._login(self._channel)
        metadata = (("token", self._token.decode("latin-1")),) if self._token else ()
        return self._channel.begin(path, request, metadata, seconds_max)

    async def _connect(self) -> Channel:
        """Return a connection to the first server that answers."""
        settings, problems = self._settings, []
        for _ in self._addresses:
            address = self._addresses[0]
            try:
                context = None
                if address.is_secure:
                    context = self._credentials.context()
                    context.set_alpn_protocols(["h2"])
                channel = Channel(
                    address,
                    settings.ping_seconds,
                    settings.ping_timeout_seconds,
                    settings.answer_bytes_max,
                )
                name = self._credentials.settings.server_name or address.host or "localhost"
                await connect(channel, context, name, settings.dial_seconds)
                return channel
            except (OSError, ValueError) as error:
                text = str(error) if isinstance(error, TimeoutError) else error_text(error)
                problems.append(f"{address.path or address.authority}: {text}")
                # Move this server to the end; the next one is tried first from now on.
                self._addresses.append(self._addresses.pop(0))
        raise StatusError(Status(Code.UNAVAILABLE, "; ".join(problems)))

    async def _login(self, channel: Channel) -> None:
        settings = self._settings
        if not settings.user or not settings.password:
            return
        self._token = b""
        request = pb.AuthenticateRequest(name=settings.user, password=settings.password)
        body = request.SerializeToString()
        call = channel.begin(AUTHENTICATE, body, (), settings.request_seconds)
        try:
            answer = pb.AuthenticateResponse.FromString(await call.message())
        except StatusError as error:
            if error.status == errors.AUTH_NOT_ENABLED:
                return
            self.close()
            if error.status.code is Code.INVALID_ARGUMENT:
                raise LoginError(error.status.text) from None
            raise
        self._token = answer.token.encode()


def parse_endpoint(text: str, *, is_secure: bool) -> ServiceAddress:
    """Parse an endpoint; raise ValueError.

    `is_secure` decides about TLS where the endpoint's scheme does not.
    """
    text = text.strip()
    for scheme, wants_tls in (("unixs", True), ("unix", is_secure)):
        if text.startswith(f"{scheme}:"):
            path = text.removeprefix(f"{scheme}:").removeprefix("//")
            return ServiceAddress("", 0, path, wants_tls)
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme not in ("http", "https"):
            raise ValueError(f"{text}: expected host:port, http, https or unix")
        text, is_secure = rest.partition("/")[0], scheme == "https"
    host, port = split_host_port(text)
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"address {text}: invalid port")
    return ServiceAddress(host, int(port), "", is_secure)
