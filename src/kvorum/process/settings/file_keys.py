"""The key of each flag in a configuration file, and the type of its value there.

A flag's key is its own name at the top level unless a table in this module says otherwise. Types
and structures have etcd's names, because etcd's messages use them.
"""

from collections.abc import Mapping
from typing import Final

from kvorum.process.settings.rows import FlagRow

_CLIENT = "client-transport-security."
_PEER = "peer-transport-security."
_DISCOVERY = "discovery-config."
_SERVICE = "discovery-config.client."

SECTIONS: Final[Mapping[str, str]] = {
    "client-transport-security": "embed.securityConfig",
    "peer-transport-security": "embed.securityConfig",
    "socket-options": "transport.SocketOpts",
    "discovery-config": "v3discovery.DiscoveryConfig",
    "discovery-config.client": "clientv3.ConfigSpec",
    "discovery-config.client.secure": "clientv3.SecureConfig",
    "discovery-config.client.auth": "clientv3.AuthConfig",
}
"""The keys that contain other keys, with their types in etcd."""

ABSENT: Final = frozenset(
    {"raft-read-timeout", "raft-write-timeout", "discovery-fallback", "config-file", "version"}
    | {"client-crl-file", "peer-crl-file"}
)
"""Flags that have no key in a file."""

_PLACES: Final[Mapping[str, str]] = {
    "cert-file": f"{_CLIENT}cert-file",
    "key-file": f"{_CLIENT}key-file",
    "client-cert-file": f"{_CLIENT}client-cert-file",
    "client-key-file": f"{_CLIENT}client-key-file",
    "client-cert-auth": f"{_CLIENT}client-cert-auth",
    "trusted-ca-file": f"{_CLIENT}trusted-ca-file",
    "auto-tls": f"{_CLIENT}auto-tls",
    "client-cert-allowed-cn": f"{_CLIENT}allowed-cn",
    "client-cert-allowed-hostname": f"{_CLIENT}allowed-hostname",
    "client-skip-client-san-verification": f"{_CLIENT}skip-client-san-verification",
    "peer-cert-file": f"{_PEER}cert-file",
    "peer-key-file": f"{_PEER}key-file",
    "peer-client-cert-file": f"{_PEER}client-cert-file",
    "peer-client-key-file": f"{_PEER}client-key-file",
    "peer-client-cert-auth": f"{_PEER}client-cert-auth",
    "peer-trusted-ca-file": f"{_PEER}trusted-ca-file",
    "peer-auto-tls": f"{_PEER}auto-tls",
    "peer-cert-allowed-cn": f"{_PEER}allowed-cn",
    "peer-cert-allowed-hostname": f"{_PEER}allowed-hostname",
    "peer-skip-client-san-verification": f"{_PEER}skip-client-san-verification",
    "socket-reuse-port": "socket-options.reuse-port",
    "socket-reuse-address": "socket-options.reuse-address",
    "discovery-token": f"{_DISCOVERY}token",
    "discovery-endpoints": f"{_SERVICE}endpoints",
    "discovery-request-timeout": f"{_SERVICE}request-timeout",
    "discovery-dial-timeout": f"{_SERVICE}dial-timeout",
    "discovery-keepalive-time": f"{_SERVICE}keepalive-time",
    "discovery-keepalive-timeout": f"{_SERVICE}keepalive-timeout",
    "discovery-max-request-bytes": f"{_SERVICE}max-request-bytes",
    "discovery-max-recv-bytes": f"{_SERVICE}max-recv-bytes",
    "discovery-cert": f"{_SERVICE}secure.cert",
    "discovery-key": f"{_SERVICE}secure.key",
    "discovery-cacert": f"{_SERVICE}secure.cacert",
    "discovery-server-name": f"{_SERVICE}secure.server-name",
    "discovery-insecure-transport": f"{_SERVICE}secure.insecure-transport",
    "discovery-insecure-skip-tls-verify": f"{_SERVICE}secure.insecure-skip-tls-verify",
    "discovery-user": f"{_SERVICE}auth.username",
    "discovery-password": f"{_SERVICE}auth.password",
    "discovery-auth-token": f"{_SERVICE}auth.token",
}

_TYPES: Final[Mapping[str, str]] = {
    "snapshot-count": "uint64",
    "snapshot-catchup-entries": "uint64",
    "quota-backend-bytes": "int64",
    "host-whitelist": "string",
    "discovery-endpoints": "[]string",
    "v2-deprecation": "config.V2DeprecationEnum",
}
"""The types of keys that differ from the type of their flag's kind."""
_TYPES_OF_KINDS: Final[Mapping[str, str]] = {
    "bool": "bool",
    "uint": "uint",
    "uint32": "uint32",
    "int": "int",
    "duration": "time.Duration",
    "string": "string",
    "list": "[]string",
    "urls": "string",
    "origins": "string",
    "gates": "string",
}
_PARSED_LATER: Final = frozenset(
    {"listen-peer-urls", "listen-client-urls", "listen-client-http-urls", "cors", "host-whitelist"}
    | {"initial-advertise-peer-urls", "advertise-client-urls", "feature-gates"}
    | {"client-transport-security", "peer-transport-security"}
)
"""Top-level keys that belong to etcd's structure `configJSON` instead of `Config`."""


def place_of(flag: FlagRow) -> str | None:
    """Return the dotted path of a flag's key; None if the flag has no key."""
    return None if flag.name in ABSENT else _PLACES.get(flag.name, flag.name)


def type_of(flag: FlagRow) -> str:
    """Return the type of a flag's value in a file."""
    return _TYPES.get(flag.name) or _TYPES_OF_KINDS[flag.kind.name]


def path_in_etcd(place: str) -> str:
    """Return a key's path as etcd's messages show it."""
    section, _, _ = place.rpartition(".")
    structure = SECTIONS[section].rpartition(".")[2] if section else "configYAML"
    part = "configJSON" if place.partition(".")[0] in _PARSED_LATER else "Config"
    return f"{structure}.{part}.{place}"
