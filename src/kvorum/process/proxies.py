"""The command lines of `kvorum gateway` and `kvorum grpc-proxy`.

The flags, their kinds and their defaults are etcd's. As in etcd, neither environment variables nor
a file set them, and the exit code is 1 for a command line that cannot be parsed or a refused start.
After a defect the exit code is 2.
"""

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.cli.errors import UsageError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.cli.parsing import parse

ADDRESS = "127.0.0.1:23790"
_LISTEN = Flag("listen-addr", "string", "Address to listen on", ADDRESS)
_ENDPOINTS = Flag("endpoints", "strings", "Members, separated by commas", ["127.0.0.1:2379"])
_DISCOVERY = (
    Flag("discovery-srv", "string", "Domain whose SRV records name the members"),
    Flag("discovery-srv-name", "string", "Suffix of the service name in SRV records"),
    Flag(
        "insecure-discovery",
        "bool",
        "Accept members from SRV records without verifying their certificates",
    ),
)
SECOND = 1_000_000_000

_GATEWAY = Command(
    "start",
    "Start the gateway",
    "kvorum.process.tcp_gateway:start",
    flags=(
        _LISTEN,
        _ENDPOINTS,
        *_DISCOVERY,
        Flag("trusted-ca-file", "string", "CA file for the certificates of members in SRV records"),
        Flag(
            "retry-delay",
            "duration",
            "Delay before an unreachable member is tried again",
            60 * SECOND,
        ),
    ),
    is_exact=True,
)

_GRPC_PROXY = Command(
    "start",
    "Start the proxy",
    "kvorum.process.grpc_proxy:start",
    flags=(
        _LISTEN,
        _ENDPOINTS,
        *_DISCOVERY,
        Flag(
            "endpoints-auto-sync-interval",
            "duration",
            "How often to fetch the member list from the members; 0: never",
        ),
        Flag("metrics-addr", "string", "Additional URL to listen on for metrics and health"),
        Flag(
            "advertise-client-url", "string", "Address at which clients reach this proxy", ADDRESS
        ),
        Flag("resolver-prefix", "string", "Prefix of the keys under which proxies register"),
        Flag(
            "resolver-ttl", "int", "Seconds after which the registration of a stopped proxy expires"
        ),
        Flag("namespace", "string", "Prefix that the proxy adds to all keys"),
        Flag(
            "data-dir",
            "string",
            "Directory for certificates that the proxy generates",
            "default.proxy",
        ),
        Flag("max-send-bytes", "int", "Maximum size of a request to a member", 1_572_864),
        Flag("max-recv-bytes", "int", "Maximum size of a member's response", 2**31 - 1),
        Flag(
            "dial-keepalive-time", "duration", "Idle time before the proxy pings a member; 0: never"
        ),
        Flag(
            "dial-keepalive-timeout", "duration", "Time a member has to answer a ping", 20 * SECOND
        ),
        Flag("permit-without-stream", "bool", "Ping members even without open calls"),
        Flag(
            "grpc-keepalive-min-time",
            "duration",
            "Minimum time between two pings from a client",
            5 * SECOND,
        ),
        Flag(
            "grpc-keepalive-interval",
            "duration",
            "Idle time after which the proxy pings a client; 0: never",
            7200 * SECOND,
        ),
        Flag(
            "grpc-keepalive-timeout",
            "duration",
            "Time a client has to answer a ping; 0: the proxy sends no pings",
            20 * SECOND,
        ),
        Flag(
            "max-concurrent-streams",
            "uint32",
            "Maximum number of concurrent calls on one client connection",
            2**32 - 1,
        ),
        Flag(
            "cert", "string", "Certificate file to present to members; it must have no common name"
        ),
        Flag("key", "string", "Private key file of the certificate for members"),
        Flag("cacert", "string", "CA file for members' certificates"),
        Flag(
            "insecure-skip-tls-verify", "bool", "Accept any certificate of a member; for tests only"
        ),
        Flag("cert-file", "string", "Server certificate file for clients"),
        Flag("key-file", "string", "Private key file of the server certificate"),
        Flag(
            "trusted-ca-file",
            "string",
            "CA file for client certificates; clients must then present one",
        ),
        Flag("client-crl-file", "string", "Revocation list file for client certificates"),
        Flag("auto-tls", "bool", "Generate a self-signed certificate for clients"),
        Flag(
            "self-signed-cert-validity", "uint", "Validity of a generated certificate, in years", 1
        ),
        Flag("listen-cipher-suites", "strings", "TLS cipher suites for clients"),
        Flag("tls-min-version", "string", "Minimum TLS version: TLS1.2 or TLS1.3", "TLS1.2"),
        Flag("tls-max-version", "string", "Maximum TLS version: TLS1.2 or TLS1.3"),
        Flag("enable-pprof", "bool", "No effect; accepted for compatibility with etcd"),
        Flag("debug", "bool", "Log debug messages"),
        Flag(
            "experimental-leasing-prefix",
            "string",
            "Not supported; the proxy refuses any value",
        ),
        Flag(
            "experimental-serializable-ordering",
            "bool",
            "Never answer a serializable read at an older revision than an earlier answer",
        ),
        Flag(
            "experimental-enable-grpc-logging",
            "bool",
            "No effect; accepted for compatibility with etcd",
        ),
    ),
    is_exact=True,
)

ROOT = Command(
    "kvorum",
    "",
    children=(
        Command(
            "gateway", "Forward TCP connections to members", children=(_GATEWAY,), is_exact=True
        ),
        Command(
            "grpc-proxy",
            "Serve the gRPC API and forward requests to members",
            children=(_GRPC_PROXY,),
            is_exact=True,
        ),
    ),
)


def run(words: Sequence[str]) -> int:
    """Run a command line that begins with `gateway` or `grpc-proxy`.

    Return its exit code, or the negated number of the signal that ended the proxy.
    """
    # Arguments may hold bytes that are not valid text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        given = parse(ROOT, words)
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n{error.usage}{error}\n")
        return 1
    if given.is_help_asked or not given.command.run:
        from kvorum.tools.cli.about import print_help

        print_help(given.command)
        return 0
    module, _, function = given.command.run.partition(":")
    try:
        code: int = getattr(import_module(module), function)(Invocation(ROOT, given), words)
    except Exception as error:
        from kvorum.server.telemetry.logs import plain_logger

        plain_logger().critical(
            "the proxy met an unforeseen error",
            error=repr(error),
            stacktrace="".join(traceback.format_exception(error)),
        )
        return 2
    return code
