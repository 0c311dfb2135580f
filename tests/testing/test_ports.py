"""Ports of tests: nobody else gets one, and none is used again soon."""

import socket

import pytest

from kvorum.testing.ports import GONE_PORTS_MAX, HOST, Ports


def is_free(port: int) -> bool:
    """Return whether somebody may bind a port who shares it with nobody."""
    with socket.socket() as other:
        try:
            other.bind((HOST, port))
        except OSError:
            return False
        return True


def test_a_port_is_held_for_a_while_after_its_use() -> None:
    ports = Ports()
    try:
        first = ports.hold()
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((HOST, first))
            server.listen()
            with socket.create_connection((HOST, first)):
                pass
        ports.give_back(first)
        for _ in range(GONE_PORTS_MAX - 1):
            ports.give_back(ports.hold())
        assert not is_free(first)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, first))
        ports.give_back(ports.hold())
        assert is_free(first)
    finally:
        ports.close()
