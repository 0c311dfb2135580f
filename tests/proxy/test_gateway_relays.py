"""One relay: what is said on one side is heard on the other, whole, in order, and to its end."""

import random
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.process.relays import CHUNK_BYTES, PIPE_BYTES, Flow, Pipe, Pipes, SocketRelay, configure
from tests.waiting import WAIT_SECONDS_MAX, until

KINDS = {"copied": 0, "spliced": 4}


@contextmanager
def connections(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Make connections of this machine with known buffers; no end of them blocks."""
    with ExitStack() as held, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * CHUNK_BYTES)
        made = []
        for _ in range(count):
            near = held.enter_context(socket.create_connection(listener.getsockname()))
            far = held.enter_context(listener.accept()[0])
            for each in (near, far):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)
                configure(each)
            made.append((near, far))
        yield made


def read(reader: socket.socket, count: int) -> bytes | None:
    """Read at most so much; None if there is nothing now."""
    try:
        return reader.recv(count)
    except BlockingIOError:
        return None


def await_bytes(reader: socket.socket) -> None:
    """Wait until there is something to read, or the end."""
    assert select.select([reader], [], [], WAIT_SECONDS_MAX)[0]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(
    size=st.integers(min_value=0, max_value=12 * CHUNK_BYTES + 17),
    steps=st.lists(st.integers(min_value=2000, max_value=2 * CHUNK_BYTES), min_size=1, max_size=8),
)
def test_everything_arrives_and_then_the_end(kind: str, size: int, steps: list[int]) -> None:
    """However much is written and read at once, and however slowly."""
    data = random.Random(size).randbytes(size)
    pipes = Pipes(KINDS[kind])
    with connections(2) as ((speaker, source), (sink, hearer)):
        flow = Flow(source, sink, pipes)
        heard, sent, turn = bytearray(), 0, 0

        def is_ended() -> bool:
            """Take turns while bytes move; the system passes them on when it likes."""
            nonlocal heard, sent, turn
            has_moved = True
            while has_moved:
                has_moved = False
                step = steps[turn % len(steps)]
                turn += 1
                if sent < size:
                    with suppress(BlockingIOError):
                        sent += speaker.send(data[sent : sent + step])
                        has_moved = True
                elif not flow.is_ending:
                    speaker.shutdown(socket.SHUT_WR)
                    flow.is_ending = True
                flow.pump()
                piece = read(hearer, step)
                if piece == b"":
                    return True
                if piece is not None:
                    heard += piece
                    has_moved = True
            return False

        until("the end is heard", is_ended)
        assert bytes(heard) == data
        assert flow.is_done
        flow.release()
    pipes.close()
    assert pipes.made == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_does_not_read_holds_the_writer_back(kind: str) -> None:
    pipes = Pipes(KINDS[kind])
    with connections(2) as ((speaker, source), (sink, hearer)):
        flow = Flow(source, sink, pipes)
        sent = 0

        def is_refused() -> bool:
            """Return whether nothing can be written, and was not the last time either.

            The system passes bytes on when it likes.
            """
            nonlocal sent
            before = sent
            with suppress(BlockingIOError):
                while True:
                    sent += speaker.send(b"x" * CHUNK_BYTES)
                    flow.pump()
            flow.pump()
            return flow.is_held_back and sent == before

        until("the writer is held back", is_refused)
        assert flow.is_held_back
        # The system doubles what it is told.
        assert sent < PIPE_BYTES + 2 * (4 + 4 + 1 + 1) * CHUNK_BYTES, (
            "more than flow and buffers hold"
        )
        assert pipes.made == (KINDS[kind] > 0)
        heard = 0

        def is_all_heard() -> bool:
            nonlocal heard
            while piece := read(hearer, CHUNK_BYTES):
                heard += len(piece)
                flow.pump()
            flow.pump()
            return heard >= sent

        until("everything is heard", is_all_heard)
        assert heard == sent
        assert not flow.is_held_back
        flow.release()
    pipes.close()


def test_pipes_are_given_back_when_little_is_said() -> None:
    pipes = Pipes(1)
    with connections(2) as ((speaker, source), (sink, hearer)):
        flow = Flow(source, sink, pipes)

        def is_made() -> int:
            with suppress(BlockingIOError):
                speaker.send(b"x" * CHUNK_BYTES)
            flow.pump()
            return pipes.made

        def taken() -> Pipe | None:
            read(hearer, CHUNK_BYTES)
            flow.pump()
            return pipes.take()

        until("a pipe is made", is_made)
        pipes.give_back(until("the pipe is given back", taken))
        flow.release()
    pipes.close()
    assert pipes.made == 0


def test_one_side_that_has_said_everything_still_hears() -> None:
    pipes = Pipes(0)
    with connections(2) as ((client, near), (far, member)):
        relay = SocketRelay(near, far, pipes)
        client.shutdown(socket.SHUT_WR)
        relay.forward.is_ending = True

        def is_done() -> bool:
            relay.forward.pump()
            return relay.forward.is_done

        until("everything is passed on", is_done)
        await_bytes(member)
        assert read(member, 1) == b""
        assert not relay.is_done
        member.send(b"late")
        await_bytes(far)
        relay.backward.pump()
        await_bytes(client)
        assert read(client, 10) == b"late"


def test_a_break_is_an_error() -> None:
    with connections(2) as ((speaker, source), (sink, _)):
        flow = Flow(source, sink, Pipes(0))
        speaker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        speaker.close()
        await_bytes(source)
        with pytest.raises(ConnectionResetError):
            flow.pump()
