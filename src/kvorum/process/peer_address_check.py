"""Check that a peer's certificate matches the address it connects from, as etcd's listener does.

A matching IP address in the certificate suffices. DNS names need lookups, first of the address'
name, then of the addresses of each name; meanwhile this module queues the events of the request and
pauses its body. A certificate without any names or addresses matches every peer, an unreadable one
matches none.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Container
from typing import Any

from kvorum.api.boundary import Boundary
from kvorum.network.edge import Edge, EdgeEventKind, Event
from kvorum.network.edge.subject import Subject, subject_of
from kvorum.network.urls import split_host_port
from kvorum.server.telemetry.logs import Logger

VERDICT_SECONDS = 10.0
"""How long the result of a name lookup is cached."""
VERDICTS_MAX = 1000
LOG_SECONDS = 10.0
"""How often a refusal of the same address is logged."""

_SERVED = ""


class PeerAddressCheck:
    """Filters the edge's events before they reach the server. Use it on the loop's thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        edge: Edge,
        listeners: Container[int],
        logger: Logger,
        wake: Callable[[], None],
        boundary: Boundary,
    ) -> None:
        self._loop = loop
        self._edge = edge
        self._listeners = listeners
        self._logger = logger
        self._wake = wake
        self._boundary = boundary
        self._held: dict[int, list[Event]] = {}
        """Queued events of the calls whose certificates await a name lookup."""
        self._accepted: list[Event] = []
        self._verdicts: dict[tuple[Subject, str], tuple[float, str]] = {}
        """For a certificate and an address: when the cached result expires, and "" or the error."""
        self._lookups: dict[tuple[Subject, str], asyncio.Task[None]] = {}
        self._logged_at: dict[str, float] = {}

    def admit(self, events: list[Event]) -> list[Event]:
        """Take events of the edge; return the ones that the server may serve now."""
        kept, opened = self._held, EdgeEventKind.HTTP_OPENED
        admitted, self._accepted = self._accepted, []
        for event in events:
            kind, call, detail = event
            if kind == opened and detail[0] in self._listeners:
                try:
                    self._open(call, event, admitted)
                except Exception as error:
                    self._boundary.take(error, "peer", f"request {call} of another member")
                    self._edge.respond(call, 500, (), b"Internal Server Error\n")
            elif call not in kept:
                admitted.append(event)
            elif kind == EdgeEventKind.ENDED:
                del kept[call]
            else:
                kept[call].append(event)
        return admitted

    def stop(self) -> None:
        """Cancel all lookups."""
        for task in self._lookups.values():
            task.cancel()

    def _open(self, call: int, event: Event, admitted: list[Event]) -> None:
        certificate = self._edge.peer_certificate(call)
        address = _host(self._edge.peer(call))
        try:
            subject = None if certificate is None else subject_of(certificate)
        except ValueError as error:
            self._refuse(call, address, str(error))
            return
        # Unix sockets have no address that a certificate could match.
        reason = _SERVED if subject is None or not address else self._reason(subject, address)
        if reason is None:
            assert subject is not None
            self._edge.pause(call)
            self._held[call] = [event]
            self._look_up(subject, address)
        elif reason == _SERVED:
            admitted.append(event)
        else:
            self._refuse(call, address, reason)

    def _refuse(self, call: int, address: str, reason: str) -> None:
        now = self._loop.time()
        if now - self._logged_at.get(address, -LOG_SECONDS) >= LOG_SECONDS:
            if len(self._logged_at) >= VERDICTS_MAX:
                self._logged_at.clear()
            self._logged_at[address] = now
            self._logger.warning(
                "rejected connection on peer endpoint", remote_addr=address, error=reason
            )
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
        self._edge.respond(call, 401, headers, f"{reason}\n".encode())

    def _reason(self, subject: Subject, address: str) -> str | None:
        """Return the error that refuses a peer, "" to accept it, None if it needs a lookup."""
        if not subject.ip_addresses and not subject.dns_names:
            return _SERVED
        if address in subject.ip_addresses:
            return _SERVED
        if not subject.dns_names:
            valid = ", ".join(subject.ip_addresses)
            return f"x509: certificate is valid for {valid}, not {address}"
        until, reason = self._verdicts.get((subject, address), (0.0, ""))
        return reason if self._loop.time() < until else None

    # Names.

    def _look_up(self, subject: Subject, address: str) -> None:
        key = subject, address
        if key not in self._lookups:
            self._lookups[key] = self._loop.create_task(self._judge(subject, address))

    async def _judge(self, subject: Subject, address: str) -> None:
        key = subject, address
        failures: list[str] = []
        is_there = False
        try:
            is_there = await self._is_named(address, subject.dns_names, failures)
        except Exception as error:
            self._boundary.take(error, "peer", f"the check of {address}", str(subject))
            failures.append(str(error))
        finally:
            del self._lookups[key]
        reason = _SERVED
        if not is_there:
            names = " ".join(f'"{name}"' for name in subject.dns_names)
            reason = f'tls: "{address}" does not match any of DNSNames [{names}]'
            reason += f" ({failures[0]})" if failures else ""
        if len(self._verdicts) >= VERDICTS_MAX:
            self._verdicts.clear()
        self._verdicts[key] = self._loop.time() + VERDICT_SECONDS, reason
        for call in [call for call in self._held if self._is_of(call, key)]:
            events = self._held.pop(call)
            self._edge.resume(call)
            if reason == _SERVED:
                self._accepted += events
            else:
                self._refuse(call, address, reason)
        self._wake()

    def _is_of(self, call: int, key: tuple[Subject, str]) -> bool:
        certificate = self._edge.peer_certificate(call)
        if certificate is None:
            # The connection is gone, and its ENDED event is yet to come.
            return False
        return (subject_of(certificate), _host(self._edge.peer(call))) == key

    async def _is_named(self, address: str, names: tuple[str, ...], failures: list[str]) -> bool:
        """Return whether an address has one of these names."""
        try:
            found, _ = await self._loop.getnameinfo((address, 0), socket.NI_NAMEREQD)
            found = found.lower().rstrip(".")
            for name in names:
                wanted = name.lower()
                if found == wanted or (wanted[:2] == "*." and found.endswith(wanted[1:])):
                    return True
        except (OSError, ValueError) as error:
            failures.append(f"lookup {address}: {_words(error)}")
        for name in names:
            if name.startswith("*"):
                continue
            try:
                places = await self._loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as error:
                failures.append(f"lookup {name}: {_words(error)}")
                continue
            if any(_plain(str(place[4][0])) == address for place in places):
                return True
        return False


def _words(error: Exception) -> Any:
    return error.strerror if isinstance(error, OSError) else error


def _host(peer: str) -> str:
    """Return the IP address of `Edge.peer`, as certificates have it; "" for a unix socket."""
    try:
        return _plain(split_host_port(peer)[0])
    except ValueError:
        return ""


def _plain(text: str) -> str:
    """Return an IP address in its canonical form; raise ValueError if it is none."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
