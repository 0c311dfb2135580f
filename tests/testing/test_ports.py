"""Ports of tests: no other program gets a reserved port, and none is reused soon."""

import socket

import pytest

from kvorum.testing.ports import HOST, RELEASED_PORTS_MAX, Ports


def is_free(port: int) -> bool:
    """Return whether a program that does not share the port can bind it."""
    with socket.socket() as other:
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


def test_a_port_is_held_for_a_while_after_its_use() -> None:
    ports = Ports()
    try:
        first = ports.reserve()
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((HOST, first))
            server.listen()
            with socket.create_connection((HOST, first)):
                pass
        ports.release(first)
        for _ in range(RELEASED_PORTS_MAX - 1):
            ports.release(ports.reserve())
        assert not is_free(first)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, first))
        ports.release(ports.reserve())
        assert is_free(first)
    finally:
        ports.close()
