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
_LISTEN = Flag("listen-addr", "string", "Address to listen at", ADDRESS)
_ENDPOINTS = Flag("endpoints", "strings", "Members, separated by commas", ["127.0.0.1:2379"])
_DISCOVERY = (
    Flag("discovery-srv", "string", "Domain whose SRV records name the members"),
    Flag("discovery-srv-name", "string", "What follows the service's name in SRV records"),
    Flag("insecure-discovery", "bool", "Take members from SRV records whatever they answer"),
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
        Flag("trusted-ca-file", "string", "Authorities of the members that SRV records name"),
        Flag(
            "retry-delay",
            "duration",
            "Time after which a member that could not be reached is tried again",
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
            "How often the members are asked who the members are; 0: never",
        ),
        Flag("metrics-addr", "string", "URL for metrics and health, besides the address"),
        Flag("advertise-client-url", "string", "Where clients find this proxy", ADDRESS),
        Flag("resolver-prefix", "string", "Prefix of the keys that proxies register at"),
        Flag("resolver-ttl", "int", "Seconds for which a registration outlives its proxy"),
        Flag("namespace", "string", "Prefix of all keys"),
        Flag("data-dir", "string", "Directory for certificates that it makes", "default.proxy"),
        Flag("max-send-bytes", "int", "Largest request that is sent to a member", 1_572_864),
        Flag("max-recv-bytes", "int", "Largest answer that is taken of one", 2**31 - 1),
        Flag("dial-keepalive-time", "duration", "Silence after which a member is pinged; 0: never"),
        Flag("dial-keepalive-timeout", "duration", "Time for it to answer a ping", 20 * SECOND),
        Flag("permit-without-stream", "bool", "Ping members even if no call is open"),
        Flag(
            "grpc-keepalive-min-time",
            "duration",
            "Shortest time between pings of a client",
            5 * SECOND,
        ),
        Flag(
            "grpc-keepalive-interval",
            "duration",
            "Silence after which a client is pinged; 0: never",
            7200 * SECOND,
        ),
        Flag(
            "grpc-keepalive-timeout",
            "duration",
            "Time for it to answer a ping; 0: none is sent",
            20 * SECOND,
        ),
        Flag(
            "max-concurrent-streams",
            "uint32",
            "Calls that a client may have open at once",
            2**32 - 1,
        ),
        Flag("cert", "string", "Certificate shown to members; it must have no common name"),
        Flag("key", "string", "Key of it"),
        Flag("cacert", "string", "Authorities of members' certificates"),
        Flag("insecure-skip-tls-verify", "bool", "Trust whatever members show; for tests only"),
        Flag("cert-file", "string", "Certificate shown to clients"),
        Flag("key-file", "string", "Key of it"),
        Flag("trusted-ca-file", "string", "Authorities of clients' certificates, which it demands"),
        Flag("client-crl-file", "string", "Revocation list of clients' certificates"),
        Flag("auto-tls", "bool", "Make a certificate for clients"),
        Flag("self-signed-cert-validity", "uint", "Years for which that is valid", 1),
        Flag("listen-cipher-suites", "strings", "TLS cipher suites for clients"),
        Flag("tls-min-version", "string", "Lowest version of TLS: TLS1.2 or TLS1.3", "TLS1.2"),
        Flag("tls-max-version", "string", "Highest version of TLS: TLS1.2 or TLS1.3"),
        Flag("enable-pprof", "bool", "Accepted for etcd's sake, without effect"),
        Flag("debug", "bool", "Log what only developers want to know"),
        Flag(
            "experimental-leasing-prefix",
            "string",
            "Accepted for etcd's sake, without effect",
        ),
        Flag(
            "experimental-serializable-ordering",
            "bool",
            "Answer no serializable read with an older revision than one before",
        ),
        Flag(
            "experimental-enable-grpc-logging", "bool", "Accepted for etcd's sake, without effect"
        ),
    ),
    is_exact=True,
)

ROOT = Command(
    "kvorum",
    "",
    children=(
        Command("gateway", "Forward connections to members", children=(_GATEWAY,), is_exact=True),
        Command(
            "grpc-proxy",
            "Serve the API with the answers of members",
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
            "the proxy met an error that nobody foresaw",
            error=repr(error),
            stacktrace="".join(traceback.format_exception(error)),
        )
        return 2
    return code
