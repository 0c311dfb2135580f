"""Warnings about valid flags that may be a mistake."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from kvorum.network.tls.security import is_secure
from kvorum.process.settings.checks import BCRYPT_COST, PEER_SECONDS_MIN, is_bcrypt_cost
from kvorum.process.settings.config import Config
from kvorum.process.settings.environment import set_in_environment, variables_of
from kvorum.state.auth.passwords import COST_MAX, COST_MIN

SUGGESTED_QUOTA_BYTES_MAX = 8 * 1024 * 1024 * 1024
REQUEST_BYTES_SUGGESTED_MAX = 10 * 1024 * 1024

DEFAULT_NAME = (
    "it isn't recommended to use default name, please set a value for --name. "
    "Note that etcd might run into issue when multiple members have the same default name"
)
DEPRECATED = {
    "max-snapshots": "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.",
    "v2-deprecation": (
        "--v2-deprecation is deprecated and scheduled for removal in v3.8. "
        "The default value is enforced, ignoring user input."
    ),
}


def suggestions(config: Config, given: Mapping[str, object]) -> list[tuple[str, dict[str, Any]]]:
    """Return warnings about the given flags, as messages and fields."""
    found: list[tuple[str, dict[str, Any]]] = []
    found.extend((text, {}) for name, text in DEPRECATED.items() if name in given)
    if not given.get("data-dir"):
        found.append(("'data-dir' was empty; using default", {"data_dir": config.data_directory}))
    if config.name == "default":
        found.append((DEFAULT_NAME, {"name": config.name}))
    if config.quota_bytes > SUGGESTED_QUOTA_BYTES_MAX:
        found.append(
            (
                "quota exceeds the suggested maximum",
                {"quota_bytes": config.quota_bytes, "suggested": SUGGESTED_QUOTA_BYTES_MAX},
            )
        )
    if config.request_bytes_max > REQUEST_BYTES_SUGGESTED_MAX:
        found.append(
            (
                "exceeded recommended request limit",
                {
                    "max_request_bytes": config.request_bytes_max,
                    "recommended_request_bytes": REQUEST_BYTES_SUGGESTED_MAX,
                },
            )
        )
    found.extend(
        (f"--{name} was raised to its least value", {"least": "5s"})
        for name in ("raft-read-timeout", "raft-write-timeout")
        if name in given and cast(float, given[name]) < PEER_SECONDS_MIN
    )
    cost = cast(int, given.get("bcrypt-cost", BCRYPT_COST))
    if not is_bcrypt_cost(cost):
        found.append(
            (
                "use default bcrypt cost instead of the invalid given cost",
                {
                    "min-cost": COST_MIN,
                    "max-cost": COST_MAX,
                    "default-cost": BCRYPT_COST,
                    "given-cost": cost,
                },
            )
        )
    if config.gates["SetMemberLocalAddr"] and not config.peer_local_address:
        urls = list(map(str, config.advertise_peer_urls))
        found.append(
            ("no address to dial other members from", {"initial_advertise_peer_urls": urls})
        )
    found.extend(_security_suggestions(config))
    if config.unsafe_no_fsync:
        found.append(("fsync is off: a power cut loses acknowledged data", {}))
    return found


def ignored(
    flags: Mapping[str, object], environment: Mapping[str, str], unknown_keys: Sequence[str]
) -> list[tuple[str, dict[str, Any]]]:
    """Return warnings about flags and variables beside a configuration file, and its unknown keys.

    Values are left out, because they may be secrets.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    beside = [f"--{name}" for name in flags if name != "config-file"]
    beside += sorted(set(set_in_environment(environment)) - set(variables_of("config-file")))
    if beside:
        text = "flags and variables beside a configuration file have no effect"
        found.append((text, {"ignored": beside}))
    if unknown_keys:
        text = "unknown keys of the configuration file have no effect"
        found.append((text, {"ignored": list(unknown_keys)}))
    return found


def _security_suggestions(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    for side, prefix, security, urls in (
        (
            "client",
            "",
            config.client_security,
            (*config.listen_client_urls, *config.listen_client_http_urls),
        ),
        ("peer", "peer-", config.peer_security, config.listen_peer_urls),
    ):
        for one in urls:
            if is_secure(one):
                continue
            if security.cert_file or security.key_file:
                yield (
                    "scheme is HTTP while key and cert files are present; "
                    "ignoring key and cert files",
                    {f"{side}_url": str(one)},
                )
            if security.client_cert_auth:
                yield (
                    f"scheme is HTTP while --{prefix}client-cert-auth is enabled; "
                    "ignoring client cert auth for this URL",
                    {f"{side}_url": str(one)},
                )
        if security.auto and not security.uses_own:
            yield f"ignoring {side} auto TLS since certs given", {}
        is_asked = security.client_cert_auth or security.trusted_ca_file
        if security.uses_own and is_asked and any(map(is_secure, urls)):
            yield (
                f"--{prefix}client-cert-auth and --{prefix}trusted-ca-file are ignored with "
                f"--{prefix}auto-tls: every client is accepted, with or without a certificate. "
                f"Give --{prefix}cert-file and --{prefix}key-file to have certificates checked",
                {f"{side}_urls": list(map(str, urls))},
            )
    if config.client_security.weak_cipher_suites:
        yield (
            "cipher suites that are weak are not offered",
            {"left_out": config.client_security.weak_cipher_suites},
        )
