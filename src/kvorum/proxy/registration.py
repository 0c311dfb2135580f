"""The registration of a proxy: a key below the resolver prefix, attached to a renewed lease.

The value has etcd's format, so that clients of etcd and of Kvorum find the proxies of both. A proxy
that loses its registration registers again, at most once a second; a draining proxy revokes its
lease at once.
"""

import json
from math import inf
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.network.edge.upstream import End
from kvorum.proxy.cluster import registration_prefix
from kvorum.proxy.interface import Logger
from kvorum.proxy.routes import Routes
from kvorum.proxy.settings import ProxySettings

RETRY_SECONDS: Final = 1.0
CALL_SECONDS_MAX: Final = 5.0


def registration_value(settings: ProxySettings) -> bytes:
    """Return the value of a proxy's registration key."""
    described = json.dumps({"name": settings.host_name}, separators=(",", ":"))
    value = {"Op": 0, "Addr": settings.advertise_client_url, "Metadata": described}
    return json.dumps(value, separators=(",", ":")).encode()


class Registration:
    """Keeps one proxy registered."""

    def __init__(self, routes: Routes, settings: ProxySettings, logger: Logger) -> None:
        self._routes = routes
        self._settings = settings
        self._logger = logger
        self._lease = 0
        self._stream: int | None = None
        self._register_at = 0.0 if settings.resolver_prefix else inf
        self._renew_at = inf
        self._lives_until = inf
        self._asked_at = 0.0
        self._has_logged = False

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        if now >= self._register_at:
            self._register(now)
        elif now >= self._lives_until:
            self._note_loss("it was not renewed in time")
        elif now >= self._renew_at:
            self._renew(now)
        return min(self._register_at, self._renew_at, self._lives_until)

    def stop(self) -> None:
        """Withdraw the registration by revoking its lease."""
        self._register_at = self._renew_at = self._lives_until = inf
        self._close()
        if self._lease:
            revoke = pb.LeaseRevokeRequest(ID=self._lease).SerializeToString()
            path = rpcs.LEASE_REVOKE.path
            self._routes.start_unary(path, revoke, (), lambda _: None, CALL_SECONDS_MAX)
            self._lease = 0

    def _register(self, now: float) -> None:
        self._register_at = inf
        self._lease = 0
        ttl = self._settings.resolver_ttl_seconds
        grant = pb.LeaseGrantRequest(TTL=ttl).SerializeToString()
        self._routes.start_unary(
            rpcs.LEASE_GRANT.path, grant, (), self._take_grant, CALL_SECONDS_MAX
        )
        self._asked_at = now

    def _take_grant(self, answer: bytes | End) -> None:
        if not isinstance(answer, bytes):
            self._note_loss(answer[1])
            return
        granted = pb.LeaseGrantResponse.FromString(answer)
        self._lease = granted.ID
        self._lives_until = self._asked_at + granted.TTL
        put = pb.PutRequest(
            key=registration_prefix(self._settings) + self._settings.advertise_client_url.encode(),
            value=registration_value(self._settings),
            lease=self._lease,
        ).SerializeToString()

        def take_registration(answer: bytes | End) -> None:
            if not isinstance(answer, bytes):
                self._note_loss(answer[1])
            else:
                self._renew_at = self._asked_at + granted.TTL / 3
                self._has_logged = False

        self._routes.start_unary(rpcs.PUT.path, put, (), take_registration, CALL_SECONDS_MAX)

    def _note_loss(self, reason: str) -> None:
        if not self._has_logged:
            self._logger.warning("this proxy is not registered", reason=reason)
            self._has_logged = True
        self._renew_at = self._lives_until = inf
        self._close()
        self._register_at = self._routes.now + RETRY_SECONDS

    def _close(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._routes.cancel(stream)

    # Renewing.

    def _renew(self, now: float) -> None:
        if self._stream is None:
            self._stream = self._routes.open_stream(rpcs.LEASE_KEEP_ALIVE.path, (), self)
        self._asked_at = now
        self._renew_at = now + RETRY_SECONDS
        request = pb.LeaseKeepAliveRequest(ID=self._lease)
        self._routes.send(self._stream, request.SerializeToString())

    def take_message(self, data: bytes) -> None:
        """Process the answer to a renewal."""
        try:
            renewed = pb.LeaseKeepAliveResponse.FromString(data)
        except DecodeError:
            return
        if renewed.TTL <= 0:
            self._note_loss("its lease has ended")
            return
        self._lives_until = self._asked_at + renewed.TTL
        self._renew_at = self._asked_at + renewed.TTL / 3

    def take_end(self, _end: End) -> None:
        """Note the end; the next renewal opens another stream."""
        self._stream = None

    def take_writable(self) -> None:
        """Do nothing: renewals are few."""
