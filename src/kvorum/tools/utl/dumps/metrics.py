"""`dump metrics`: list the metrics of a running member, with descriptions, without values.

Words replace the ids of members, and the status codes of calls are listed once, so that the output
of different members can be compared.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import CERT_NONE, SSLContext, SSLError
from typing import NamedTuple
from urllib.parse import urlsplit

from kvorum.client.grpc.trust import server_context
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.text import quoted
from kvorum.tools.utl.dumps.lines import DumpOutput

PAGE_BYTES_MAX = 64 << 20

_LOCAL, _REMOTE = "LOCAL_NODE_ID", "REMOTE_PEER_NODE_ID"
# Show these once, whatever peers there are.
_OF_PEERS = {
    "etcd_network_active_peers": f'{{Local="{_LOCAL}",Remote="{_REMOTE}"}}',
    "etcd_network_peer_sent_bytes_total": f'{{To="{_REMOTE}"}}',
    "etcd_network_peer_received_bytes_total": f'{{From="{_REMOTE}"}}',
}
_ROUND_TRIPS = "etcd_network_peer_round_trip_time_seconds"
_HANDLED = "grpc_server_handled_total"
_VERSION = "etcd_server_version"
_PEER = re.compile(r'\bTo="[^"]*"')
_CODE = re.compile(r'\bgrpc_code="([^"]*)"')


class ScrapeTls(NamedTuple):
    """The trusted certificates, and the client's own."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    is_insecure: bool = False


@dataclass
class Metric:
    """A metric, with the names and labels of its samples."""

    name: str
    description: str
    type: str = ""
    samples: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)


def dump_metrics(lines: DumpOutput, url: str, tls: ScrapeTls, seconds: float) -> None:
    """Fetch a member's metrics, and show them in the order of their names."""
    metrics = sorted(parse_page(_fetched(url, tls, seconds)), key=lambda metric: metric.name)
    version = next((each.samples[0] for each in metrics if each.name == _VERSION), "unknown")
    if lines.is_json:
        lines.object({"server_version": version})
    else:
        lines.text(f"# server version: {version}")
    for metric in metrics:
        if lines.is_json:
            lines.object(
                {
                    "name": metric.name,
                    "description": metric.description,
                    "type": metric.type,
                    "grpc_codes": metric.codes,
                    "samples": metric.samples,
                }
            )
        else:
            lines.text(f"\n{_text(metric)}")


def parse_page(page: str) -> list[Metric]:
    """Parse a page in the text format of Prometheus; return the metrics in its order."""
    found: list[Metric] = []
    for line in page.split("\n"):
        if line.startswith("# HELP "):
            name, _, description = line.removeprefix("# HELP ").partition(" ")
            found.append(Metric(name, description))
        elif line.startswith("# TYPE "):
            if found:
                found[-1].type = line.rpartition(" ")[2]
        elif line and found:
            found[-1].samples.append(_sample(line))
    for metric in found:
        _join(metric)
    return found


def _sample(line: str) -> str:
    """Return name and labels of a sample; labels may contain blanks."""
    end = line.rfind("}")
    return line[: end + 1] if end >= 0 else line.partition(" ")[0]


def _join(metric: Metric) -> None:
    if metric.name in _OF_PEERS:
        metric.samples = [f"{metric.name}{_OF_PEERS[metric.name]}"]
    elif metric.name == _ROUND_TRIPS:
        metric.samples = _distinct(_PEER.sub(f'To="{_REMOTE}"', each) for each in metric.samples)
    elif metric.name == _HANDLED:
        metric.codes = _distinct(code for each in metric.samples for code in _CODE.findall(each))
        metric.samples = _distinct(_CODE.sub('grpc_code="CODE"', each) for each in metric.samples)


def _distinct(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts))


def _text(metric: Metric) -> str:
    head = [
        f"# name: {quoted(metric.name)}",
        f"# description: {quoted(metric.description)}",
        f"# type: {quoted(metric.type)}",
    ]
    if metric.codes:
        head += ["# gRPC codes: ", *(f"#  - {quoted(code)}" for code in metric.codes)]
    return "\n".join([*head, *metric.samples])


def _fetched(url: str, tls: ScrapeTls, seconds: float) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(
            f'--addr is "{url}"; expected the URL of a page of metrics, such as '
            "http://127.0.0.1:2379/metrics",
            BAD_ARGUMENTS,
        )
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    try:
        connection = _connection(parts.scheme, parts.hostname, parts.port, tls, seconds or None)
        try:
            connection.request("GET", "/metrics" if target in ("", "/") else target)
            response = connection.getresponse()
            if response.status != 200:
                raise CommandError(f"{url} answers {response.status} {response.reason}")
            page = response.read(PAGE_BYTES_MAX + 1)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise CommandError(f"failed to fetch metrics from {url}: {error}") from error
    if len(page) > PAGE_BYTES_MAX:
        raise CommandError(f"{url} answers with more than {PAGE_BYTES_MAX} bytes")
    return page.decode("utf-8", "backslashreplace")


def _connection(
    scheme: str, host: str, port: int | None, tls: ScrapeTls, seconds: float | None
) -> HTTPConnection:
    if scheme == "http":
        return HTTPConnection(host, port, timeout=seconds)
    return HTTPSConnection(host, port, timeout=seconds, context=_context(tls))


def _context(tls: ScrapeTls) -> SSLContext:
    if bool(tls.cert) != bool(tls.key):
        raise CommandError("--cert and --key go together", BAD_ARGUMENTS)
    try:
        context = server_context(tls.ca)
        if tls.is_insecure:
            context.check_hostname = False
            context.verify_mode = CERT_NONE
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, SSLError) as error:
        files = ", ".join(filter(None, (tls.ca, tls.cert, tls.key)))
        raise CommandError(f"no certificates can be read from {files}: {error}") from error
    return context
