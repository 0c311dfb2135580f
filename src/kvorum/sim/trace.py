"""The trace of a run, one dense line per event. docs/simulation.md has the legend.

A line depends on nothing but the run: no address, no path, no order of a set. So the traces of
one seed are equal byte for byte, whatever the hash seed of the interpreter.
"""

from kvorum.raft.messages import Message
from kvorum.raft.names import MESSAGE_TYPE_NAMES
from kvorum.sim.moments import Kind, Moment, Moments

_KEY_LENGTH_MAX = 24


class Trace:
    """The lines of one run, in order, and the data of its picture."""

    __slots__ = ("lines", "moments")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.moments = Moments()

    def line(
        self,
        now: float,
        who: str,
        what: str,
        kind: Kind | None = None,
        seconds: float = 0.0,
        about: tuple[str, ...] = (),
    ) -> None:
        """Add a line: time, name, event; with a kind, the event is in pictures, too."""
        self.lines.append(f"{now:11.6f} {who:<3} {what}")
        if kind is not None:
            self.moments.events.append(Moment(now, who, kind, what, now + seconds, about))

    def text(self) -> str:
        """Return all lines."""
        return "".join(f"{line}\n" for line in self.lines)


def describe(message: Message) -> str:
    """Return a raft message in a few words: kind, term, place in the log, contents."""
    kind = MESSAGE_TYPE_NAMES[message.type].removeprefix("Msg")
    parts = [f"{kind} t{message.term}"]
    if message.index or message.log_term:
        parts.append(f"i{message.index}/{message.log_term}")
    if message.entries:
        parts.append(f"+{len(message.entries)}")
    if message.commit:
        parts.append(f"c{message.commit}")
    if message.snapshot is not None:
        parts.append(f"snap{message.snapshot.index}/{message.snapshot.term}")
    if message.reject:
        parts.append(f"reject{message.reject_hint}")
    return " ".join(parts)


def shown(data: bytes | None) -> str:
    """Return a key or value, shortened to fit on a line."""
    if data is None:
        return "-"
    text = data[:_KEY_LENGTH_MAX].decode("ascii", "backslashreplace")
    return text if len(data) <= _KEY_LENGTH_MAX else f"{text}..{len(data)}"
