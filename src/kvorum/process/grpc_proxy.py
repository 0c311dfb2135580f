"""`kvorum grpc-proxy start`: check the flags, start a gRPC proxy, serve until a signal.

The order of the start, its texts and its exit codes are etcd's: first the arguments, then the
listen address, TLS for clients, the members and TLS with them, the address for metrics. Unlike
etcd's proxy, this one shuts down gracefully on a signal.
"""

import random
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from kvorum.client.endpoints import Address, parse_endpoint
from kvorum.client.grpc.namesakes import allow_odd_names
from kvorum.network.edge import (
    Edge,
    Limits,
    ListenerKind,
    TlsSettings,
    edge_name,
    make_upstream,
    open_edge,
)
from kvorum.network.edge.upstream import UpstreamSettings, UpstreamTls
from kvorum.network.tls.security import (
    VERSIONS,
    Security,
    check_security,
    check_versions,
    cipher_suites_by_name,
    is_secure,
    tls_settings,
)
from kvorum.network.urls import Url, url
from kvorum.process.addresses import check_address, listen_address
from kvorum.process.lookups import members_by_records
from kvorum.process.notify import notify_ready
from kvorum.process.pages import MemberPages
from kvorum.process.proxy_loop import ProxyLoop
from kvorum.process.settings.config import ConfigError
from kvorum.process.start_errors import TlsRefusedError
from kvorum.proxy.proxy import Proxy
from kvorum.proxy.settings import EDGE_METADATA_KEYS, EDGE_METHODS, ProxySettings
from kvorum.server.http.http import READ_HEADERS
from kvorum.server.telemetry import system
from kvorum.server.telemetry.exposition import Family
from kvorum.server.telemetry.families import METRICS
from kvorum.server.telemetry.logs import Logger, open_logger
from kvorum.storage.platform.processes import raise_descriptor_limit
from kvorum.tools.cli.invocation import Invocation

REQUEST_BYTES_MAX = 4 * 1024 * 1024
"""The largest message of a client: gRPC's default. --max-send-bytes is usually less."""
SEND_BYTES_MAX = 2 * 1024 * 1024
RECEIVE_BYTES_MAX = 2**31 - 1
"""The limits if --max-send-bytes or --max-recv-bytes is 0."""
PING_SECONDS_MIN = 10.0
"""The lower bound of --dial-keepalive-time, as in gRPC."""

_WITHOUT_EFFECT = (
    "enable-pprof",
    "experimental-enable-grpc-logging",
)


def start(invocation: Invocation, words: Sequence[str]) -> int:
    """Serve until a signal; return its negated number, or an exit code if the start fails."""
    level = "debug" if invocation.switch("debug") else "info"
    logger = open_logger("zap", ("default",), level, "")
    try:
        security = _security(invocation)
        check_arguments(invocation, security)
        logger.info("Running: ", args=["kvorum", *words])
        listened = listen_address(invocation.text("listen-addr"))
        tls = _listen_tls(invocation, security, listened, logger)
        settings = proxy_settings(invocation, logger)
        return -_serve(invocation, settings, listened, tls, logger)
    except TlsRefusedError as error:
        logger.critical("failed to create TLS listener", error=str(error))
    except (ConfigError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
    return 1


def check_arguments(invocation: Invocation, security: Security) -> None:
    """Raise ValueError for flags that do not fit together, in etcd's order."""
    prefix, seconds = invocation.text("resolver-prefix"), invocation.number("resolver-ttl")
    if prefix and seconds < 1:
        raise ValueError(f"invalid resolver-ttl {seconds}")
    if not prefix and seconds > 0:
        raise ValueError('invalid resolver-prefix ""')
    if prefix and not invocation.text("advertise-client-url"):
        raise ValueError('invalid advertise-client-url ""')
    if security.auto and not security.self_signed_years:
        raise ValueError("selfSignedCertValidity is invalid,it should be greater than 0")
    for name in ("tls-min-version", "tls-max-version"):
        version = invocation.text(name)
        if version not in ("", *VERSIONS):
            raise ValueError(
                f'{name} is invalid: unexpected TLS version "{version}" (must be one of: '
                f"{', '.join(VERSIONS)})"
            )
    check_versions(security)
    leasing = invocation.text("experimental-leasing-prefix")
    if leasing:
        # Clients that own keys under this prefix would not see writes through this proxy.
        raise ValueError(
            f'--experimental-leasing-prefix="{leasing}" is not supported: leave it out, or have '
            "clients of the same prefix own keys themselves (docs/client.md)"
        )


def _security(invocation: Invocation) -> Security:
    """Return the TLS options for clients from the flags."""
    return Security(
        cert_file=invocation.text("cert-file"),
        key_file=invocation.text("key-file"),
        trusted_ca_file=invocation.text("trusted-ca-file"),
        crl_file=invocation.text("client-crl-file"),
        client_cert_auth=False,
        client_cert_file="",
        client_key_file="",
        skip_address_check=True,
        allowed_names=(),
        allowed_hostnames=(),
        auto=invocation.switch("auto-tls"),
        self_signed_years=invocation.number("self-signed-cert-validity"),
        cipher_suites=cipher_suites_by_name(invocation.texts("listen-cipher-suites")),
        version_min=invocation.text("tls-min-version"),
        version_max=invocation.text("tls-max-version"),
    )


def _listen_tls(
    invocation: Invocation, security: Security, listened: Url, logger: Logger
) -> TlsSettings | None:
    """Return TLS for clients; None if no flag asks for it. Raises TlsRefusedError."""
    if not security.uses_own and not (
        security.cert_file or security.key_file or security.trusted_ca_file
    ):
        return None
    check_security(security, "")
    # Imported late: the import is slow, and only TLS needs it.
    from kvorum.network.tls.files import TlsFileError, check_files

    if security.trusted_ca_file and not security.cert_file and not security.key_file:
        # With --auto-tls, too: a flag that demands client certificates must not be ignored.
        raise TlsRefusedError(_without_certificate(listened.address))
    try:
        for doubt in check_files(security, "", datetime.now(UTC)):
            logger.warning("a TLS file is doubtful", reason=doubt)
        secure = Url("https", listened.host, "", listened.text)
        fixtures = Path(invocation.text("data-dir"), "fixtures", "proxy")
        tls = tls_settings(security, [secure], fixtures)[secure.address]
    except (TlsFileError, OSError, ValueError) as error:
        raise TlsRefusedError(str(error)) from None
    assert tls is not None
    logger.info(
        "gRPC proxy server TLS",
        tls_info=f"cert = {tls.cert_file}, key = {tls.key_file}, client-cert=, client-key=, "
        f"trusted-ca = {tls.client_ca_file}, client-cert-auth = {bool(tls.client_ca_file)}, "
        f"crl-file = {tls.client_crl_file}",
    )
    return tls


def _without_certificate(address: str) -> str:
    return f"cannot listen on TLS for {address}: KeyFile and CertFile are not presented"


def proxy_settings(invocation: Invocation, logger: Logger) -> ProxySettings:
    """Return the proxy's settings from the flags; raise ValueError or OSError."""
    tls = _upstream_tls(invocation)
    endpoints = _endpoints(invocation, tls, logger)
    if not endpoints:
        raise ValueError("etcdclient: no available endpoints")
    send = invocation.number("max-send-bytes")
    receive = invocation.number("max-recv-bytes")
    if send > receive > 0:
        raise ValueError(
            f"gRPC message recv limit ({receive} bytes) must be greater than send limit "
            f"({send} bytes)"
        )
    return ProxySettings(
        endpoints=endpoints,
        upstream_tls=tls,
        sync_seconds=invocation.seconds("endpoints-auto-sync-interval") or inf,
        namespace=invocation.text("namespace").encode(errors="surrogateescape"),
        advertise_client_url=invocation.text("advertise-client-url"),
        resolver_prefix=invocation.text("resolver-prefix"),
        resolver_ttl_seconds=invocation.number("resolver-ttl"),
        host_name=socket.gethostname(),
        send_bytes_max=send if send > 0 else SEND_BYTES_MAX,
        is_ordering=invocation.switch("experimental-serializable-ordering"),
    )


def _upstream_tls(invocation: Invocation) -> UpstreamTls | None:
    """Check the TLS files for members and return the settings; None if no flag asks for TLS."""
    cert, key = invocation.text("cert"), invocation.text("key")
    authority = invocation.text("cacert")
    is_verified = not invocation.switch("insecure-skip-tls-verify")
    if not (cert or key or authority) and is_verified:
        return None
    if bool(cert) != bool(key):
        raise ValueError(f"KeyFile and CertFile must both be present[key: {key}, cert: {cert}]")
    for path in filter(None, (cert, key, authority)):
        _check_readable(path)
    if cert:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        allow_odd_names()
        data = Path(cert).read_bytes()
        try:
            own = x509.load_pem_x509_certificates(data)[0]
        except ValueError as error:
            raise ValueError(f"--cert={cert}: no certificate can be read in it: {error}") from None
        names = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if any(each.value for each in names):
            raise ValueError(f"cert has non empty Common Name ({names[0].value!s}): {cert}")
    return UpstreamTls("", authority, cert, key, is_verified)


def _check_readable(path: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"open {path}: {reason}") from None


def _endpoints(
    invocation: Invocation, tls: UpstreamTls | None, logger: Logger
) -> tuple[Address, ...]:
    if not invocation.text("discovery-srv"):
        return tuple(map(parse_endpoint, invocation.texts("endpoints")))
    files = () if tls is None else (tls.ca_file, tls.cert_file, tls.key_file)
    found = members_by_records(invocation, files, logger)
    return tuple(parse_endpoint(each.endpoint) for each in found)


def _limits(invocation: Invocation) -> Limits:
    return Limits(
        request_bytes_max=REQUEST_BYTES_MAX,
        streams_per_connection_max=invocation.number("max-concurrent-streams"),
        ping_seconds_min=invocation.seconds("grpc-keepalive-min-time"),
        keepalive_seconds=invocation.seconds("grpc-keepalive-interval"),
        keepalive_timeout_seconds=invocation.seconds("grpc-keepalive-timeout"),
    )


def _upstream_settings(invocation: Invocation) -> UpstreamSettings:
    receive = invocation.number("max-recv-bytes")
    ping_seconds = invocation.seconds("dial-keepalive-time")
    return UpstreamSettings(
        message_bytes_max=receive if receive > 0 else RECEIVE_BYTES_MAX,
        ping_seconds=max(ping_seconds, PING_SECONDS_MIN) if ping_seconds > 0 else 0.0,
        pong_seconds_max=invocation.seconds("dial-keepalive-timeout"),
        pings_without_calls=invocation.switch("permit-without-stream"),
    )


def _serve(
    invocation: Invocation,
    settings: ProxySettings,
    listened: Url,
    tls: TlsSettings | None,
    logger: Logger,
) -> int:
    """Serve until a signal, shut down, and return the signal's number."""
    for name in _WITHOUT_EFFECT:
        if name in invocation.given.changed:
            logger.warning("a flag of etcd's has no effect here", flag=f"--{name}")
    raise_descriptor_limit()
    edge = open_edge(EDGE_METHODS, EDGE_METADATA_KEYS, _limits(invocation), READ_HEADERS)
    try:
        upstream = make_upstream(_upstream_settings(invocation), edge)
    except BaseException:
        edge.stop()
        raise
    loop = ProxyLoop(edge, upstream, logger)
    dice = random.SystemRandom()
    addresses = dice.sample(settings.endpoints, len(settings.endpoints))
    pages = MemberPages(addresses, settings.upstream_tls, loop.thread_executor)
    try:
        loop.proxy = Proxy(
            edge,
            upstream,
            settings,
            dice.randrange,
            logger,
            fetch=pages.fetch,
            process_families=_process_families,
        )
        with loop.waking:
            _, address = edge.listen(listened.address, tls)
            logger.info("listening for gRPC proxy client requests", address=address)
            _listen_for_metrics(invocation, tls, edge, loop.proxy, logger)
            logger.info("started gRPC proxy", address=address, edge=edge_name())
            notify_ready(logger)
            return loop.run()
    finally:
        edge.stop()
        upstream.stop()


def _listen_for_metrics(
    invocation: Invocation, tls: TlsSettings | None, edge: Edge, proxy: Proxy, logger: Logger
) -> None:
    text = invocation.text("metrics-addr")
    if not text:
        return
    try:
        place = url(text)
    except ValueError as error:
        raise ValueError(f'cannot parse "{text}": {error}') from None
    if is_secure(place) and tls is None:
        raise ValueError(_without_certificate(place.address))
    check_address(place, "--metrics-addr", reuse_port=False)
    number, address = edge.listen(
        place.address,
        tls if is_secure(place) else None,
        http1_only=True,
        kind=ListenerKind.METRICS,
    )
    proxy.front.add_metrics_listener(number)
    logger.info("gRPC proxy listening for metrics", address=address)


def _process_families() -> Iterator[Family]:
    for name, samples in system.shown():
        metric = METRICS[name]
        yield Family(name, metric.type, metric.help, samples)
