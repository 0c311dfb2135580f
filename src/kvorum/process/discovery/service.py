"""Runs the v3 discovery protocol against a service: each step is a call or a wait."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from kvorum.api.errors import StatusError
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import mvccpb
from kvorum.api.ranges import prefix_end
from kvorum.network.tls.credentials import DialSettings
from kvorum.process.discovery.client import Client, LoginError, ServiceSettings
from kvorum.process.discovery.registry import (
    DiscoveryError,
    Failed,
    Get,
    Pair,
    RegistryPut,
    RegistryResult,
    Step,
    Steps,
    Wait,
)
from kvorum.process.settings.config import Config
from kvorum.state.membership.bootstrap import InitialCluster

Sleep = Callable[[float], Awaitable[None]]


def service_settings(config: Config) -> ServiceSettings:
    """Return the service's settings from the configuration."""
    security = DialSettings(
        cert_file=config.discovery_cert_file,
        key_file=config.discovery_key_file,
        ca_file=config.discovery_ca_file,
        server_name=config.discovery_server_name,
        insecure=config.discovery_trusts_anyone,
    )
    has_tls = security != DialSettings() or not config.discovery_insecure
    return ServiceSettings(
        endpoints=config.discovery_endpoints,
        dial_seconds=config.discovery_dial_seconds,
        request_seconds=config.discovery_request_seconds,
        ping_seconds=config.discovery_ping_seconds,
        ping_timeout_seconds=config.discovery_ping_timeout_seconds,
        security=security if has_tls else None,
        user=config.discovery_user,
        password=config.discovery_password,
        token=config.discovery_auth_token,
        request_bytes_max=config.discovery_request_bytes_max,
        answer_bytes_max=config.discovery_answer_bytes_max,
    )


async def run(steps: Steps, client: Client, sleep: Sleep = asyncio.sleep) -> InitialCluster:
    """Run the steps one after the other; return the cluster that they return.

    Raises BootstrapError if a step does, or if the service rejects the user.
    """
    try:
        step = next(steps)
        while True:
            step = steps.send(await _outcome(step, client, sleep))
    except StopIteration as end:
        cluster: InitialCluster = end.value
        return cluster
    except LoginError as error:
        raise DiscoveryError(
            str(error), "check --discovery-user and --discovery-password"
        ) from None
    finally:
        steps.close()
        client.close()


async def _outcome(step: Step, client: Client, sleep: Sleep) -> RegistryResult | Failed | None:
    try:
        if isinstance(step, Wait):
            await sleep(step.seconds)
            return None
        if isinstance(step, RegistryPut):
            request = pb.PutRequest(key=step.key.encode(), value=step.value.encode())
            written = await client.put(request)
            return RegistryResult((), written.header.revision)
        if isinstance(step, Get):
            key = step.key.encode()
            end = prefix_end(key) if step.is_prefix else b""
            read = await client.range(pb.RangeRequest(key=key, range_end=end))
            return RegistryResult(_pairs(read.kvs), read.header.revision)
        key = step.prefix.encode()
        changed = await client.next_change(
            pb.WatchCreateRequest(key=key, range_end=prefix_end(key), start_revision=step.revision)
        )
        pairs = _pairs(event.kv for event in changed.events)
        return RegistryResult(pairs, max(event.kv.mod_revision for event in changed.events))
    except StatusError as error:
        return Failed(error.status.text)


def _pairs(kvs: Iterable[mvccpb.KeyValue]) -> list[Pair]:
    return [Pair(each.key, each.value, each.create_revision) for each in kvs]
