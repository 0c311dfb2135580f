"""One relay: what is said on one side is heard on the other, whole, in order, and to its end."""

import random
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.process.relays import CHUNK_BYTES, PIPE_BYTES, Flow, Pipes, Relay, configure

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
        heard, sent, turn, is_ended = bytearray(), 0, 0, False
        while not is_ended:
            step = steps[turn % len(steps)]
            turn += 1
            if sent < size:
                with suppress(BlockingIOError):
                    sent += speaker.send(data[sent : sent + step])
            elif not flow.is_ending:
                speaker.shutdown(socket.SHUT_WR)
                flow.is_ending = True
            flow.pump()
            piece = read(hearer, step)
            if piece is not None:
                heard += piece
                is_ended = not piece
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
        sent, refusals = 0, 0
        # The system passes bytes on when it likes: only many refusals in a row are one.
        while refusals < 1000:
            try:
                sent += speaker.send(b"x" * CHUNK_BYTES)
                refusals = 0
            except BlockingIOError:
                refusals += 1
            flow.pump()
        assert flow.is_held_back
        # The system doubles what it is told.
        assert sent < PIPE_BYTES + 2 * (4 + 4 + 1 + 1) * CHUNK_BYTES, (
            "more than flow and buffers hold"
        )
        assert pipes.made == (KINDS[kind] > 0)
        heard = 0
        while heard < sent:
            heard += len(read(hearer, CHUNK_BYTES) or b"")
            flow.pump()
        assert heard == sent
        assert not flow.is_held_back
        flow.release()
    pipes.close()


def test_pipes_are_given_back_when_little_is_said() -> None:
    pipes = Pipes(1)
    with connections(2) as ((speaker, source), (sink, hearer)):
        flow = Flow(source, sink, pipes)
        while not pipes.made:
            with suppress(BlockingIOError):
                speaker.send(b"x" * CHUNK_BYTES)
            flow.pump()
        while (taken := pipes.take()) is None:
            read(hearer, CHUNK_BYTES)
            flow.pump()
        pipes.give_back(taken)
        flow.release()
    pipes.close()
    assert pipes.made == 0


def test_one_side_that_has_said_everything_still_hears() -> None:
    pipes = Pipes(0)
    with connections(2) as ((client, near), (far, member)):
        relay = Relay(near, far, pipes)
        client.shutdown(socket.SHUT_WR)
        relay.forward.is_ending = True
        while not relay.forward.is_done:
            relay.forward.pump()
        while (end := read(member, 1)) is None:
            pass
        assert end == b""
        assert not relay.is_done
        member.send(b"late")
        while (late := read(client, 10)) is None:
            relay.backward.pump()
        assert late == b"late"


def test_a_break_is_an_error() -> None:
    with connections(2) as ((speaker, source), (sink, _)):
        flow = Flow(source, sink, Pipes(0))
        speaker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        speaker.close()
        select.select([source], [], [])
        with pytest.raises(ConnectionResetError):
            flow.pump()
