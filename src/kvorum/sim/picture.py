"""A picture of a run: one page with a lane for each member, the network, the operator, clients.

The page is one self-contained file, and it is XML as well as HTML. It depends on nothing but the
run. docs/simulation.md explains it.
"""

from collections.abc import Sequence
from itertools import chain

from kvorum.api.errors import Status
from kvorum.raft.states import Role
from kvorum.sim.describe import describe_request, describe_result
from kvorum.sim.history import Record
from kvorum.sim.lanes import (
    Member,
    Process,
    clients_of,
    members_of,
    partitions_of,
    watches_of,
)
from kvorum.sim.moments import Kind, Moment, Moments
from kvorum.sim.svg import Canvas, Tags, number, safe

NAMES_WIDTH = 86
AXIS_HEIGHT = 26.0
ROLE_HEIGHT = 20.0
STEPS_HEIGHT = 36.0
_BARS_HEIGHT = ROLE_HEIGHT + 3.0 + STEPS_HEIGHT + 2.0
TAG_ROWS_MAX = 6
LANE_GAP = 12.0
CLIENT_HEIGHT = 12.0
CUT_HEIGHT = 3.0
BAND_HEIGHT = 18.0
"""The height of the line that says how a run ended."""

# Words and styles for the events of a member.
_WORDS = {
    Kind.TERMINATED: ("told to end", "fault"),
    Kind.ENDED: ("ended", "calm"),
    Kind.STOPPED: ("stopped", "grave"),
    Kind.REFUSED: ("refused", "fault"),
    Kind.KILLED: ("killed", "grave"),
    Kind.POWER_CUT: ("power cut", "grave"),
    Kind.GIVEN_UP: ("given up", "calm"),
    Kind.PAUSED: ("paused", "fault"),
    Kind.CUT_OFF: ("amid its work", "grave"),
    Kind.DISK_ERROR: ("disk error", "fault"),
    Kind.DISK_FULL: ("disk full", "fault"),
    Kind.DISK_STALLED: ("disk stalls", "fault"),
    Kind.DISK_LOST: ("disk lost", "grave"),
    Kind.DISK_RESTORED: ("disk restored", "calm"),
    Kind.BIT_FLIPPED: ("bit flips", "grave"),
    Kind.SNAPSHOT_SENT: ("sends snapshot", "snapshot"),
}
_LASTING = {Kind.DISK_FULL: "disk-full", Kind.DISK_STALLED: "disk-stalled"}
_ROLES = {
    Role.FOLLOWER: ("follower", "follows"),
    Role.CANDIDATE: ("candidate", "stands for"),
    Role.PRE_CANDIDATE: ("candidate", "asks before it stands after"),
    Role.LEADER: ("leader", "leads"),
}
_WRITES = ("PutRequest", "DeleteRangeRequest", "TxnRequest", "CompactionRequest")
_READS = ("RangeRequest", "LeaderRequest")

_STYLE = """
body { font: 14px/1.4 sans-serif; color: #1c2430; background: #fff; margin: 16px; }
h1 { font-size: 20px; margin: 0 0 6px; }
.violation { border-left: 6px solid #d0021b; background: #fdecee; padding: 8px 12px; margin: 8px 0;
  max-width: 1500px; }
.violation h2 { color: #a80016; font-size: 16px; margin: 0; }
.violation pre, details pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0;
  font: 12px/1.4 monospace; max-height: 12em; overflow-y: auto; }
.violation a { color: #a80016; font-weight: bold; }
.fine { color: #1d6b37; font-weight: bold; }
.legend { font-size: 12px; margin: 8px 0; max-width: 1500px; }
.legend span { white-space: nowrap; margin-right: 14px; }
.legend svg { vertical-align: -2px; margin-right: 4px; }
.picture { display: flex; overflow-x: auto; border: 1px solid #c9d1db; }
.names { position: sticky; left: 0; flex: none; background: #f4f6f9; z-index: 1;
  border-right: 1px solid #c9d1db; }
.lanes { flex: none; }
svg text { font: 10px sans-serif; fill: #1c2430; }
svg text.name { font: bold 14px sans-serif; }
svg text.client { font: 10px monospace; }
svg text.marked { fill: #d0021b; font-weight: bold; }
svg text.index { paint-order: stroke; stroke: #fff; stroke-width: 2px; }
svg text.time { font: 11px monospace; fill: #445163; }
svg text.term { font: bold 12px sans-serif; fill: #fff; pointer-events: none; }
svg text.weak { pointer-events: none; }
svg text.tagged, svg text.inside { pointer-events: none; }
.lane { fill: #f1f3f6; }
.second { stroke: #d3dae3; } .half { stroke: #e9edf2; }
.running { fill: #fff; stroke: #aeb9c7; stroke-width: 0.6; }
.entering { fill: #e4e9ef; }
.paused { fill: #f8e2ae; }
.standstill { fill: url(#stripes); pointer-events: none; }
.leader { fill: #1f5fbf; } .candidate { fill: #e8a33d; } .follower { fill: #cfe0f5; }
.learner { fill: #dcd3ee; }
.committed { fill: none; stroke: #1c2430; stroke-width: 1.2; }
.applied { fill: none; stroke: #18a05e; stroke-width: 1.6; stroke-opacity: 0.75; }
.disk-full, .disk-stalled { fill: #e07b39; fill-opacity: 0.35; }
.cut { fill: #8e3fc0; } .partition { fill: #e5d2f2; stroke: #8e3fc0; }
.tag { stroke-width: 0.8; rx: 2; }
.grave { fill: #ffd3d6; stroke: #c4303c; } .fault { fill: #fde6c8; stroke: #c98222; }
.calm { fill: #e6eaef; stroke: #8694a5; } .snapshot { fill: #d4f0e6; stroke: #1d8a68; }
.own { fill: #f2faf7; stroke: #a5cfc0; } .leads { fill: #c3d8f7; stroke: #1f5fbf; }
.about-member { fill: #ffb3ba; stroke: #d0021b; }
.operator { fill: #e9e4f8; stroke: #7360b8; }
.write { fill: #2a6fd6; } .read { fill: #37a86b; } .other { fill: #8a63c9; }
.refused { fill: #e3942b; } .lost { fill: #fff; stroke: #6c7887; stroke-width: 1; }
.watch { fill: #d6ebe8; } .got { fill: #17807a; } .lost-watch { fill: #e3942b; }
.peace { stroke: #1d8a3a; stroke-width: 2; stroke-dasharray: 6 4; }
text.peace-word { font: bold 12px sans-serif; fill: #1d6b37; stroke: none; }
.violated { stroke: #d0021b; stroke-width: 2.5; }
text.violated-word { font: bold 12px sans-serif; fill: #d0021b; stroke: none; }
.about { fill: #d0021b; fill-opacity: 0.18; pointer-events: none; }
.about-record { fill: #d0021b; stroke: #8d0012; stroke-width: 1; }
.ring { fill: none; stroke: #d0021b; stroke-width: 2.5; pointer-events: none; }
.row-marked { fill: #fdecee; }
"""
_SCRIPT = """
const marked = document.querySelector('.ring') || document.querySelector('.violated');
const picture = document.querySelector('.picture');
if (marked !== null) {
  const at = marked.getBoundingClientRect().left - picture.getBoundingClientRect().left;
  picture.scrollLeft = at - picture.clientWidth / 2;
}
"""
_LEGEND = (
    ("leader", "leads, with its term"),
    ("candidate", "candidate"),
    ("follower", "follower"),
    ("learner", "learner"),
    ("entering", "starts, not yet a member"),
    ("lane", "down"),
    ("paused", "process paused"),
    ("cut", "cut off from others"),
    ("disk-full", "disk full or stalled"),
    ("grave", "crash, damage"),
    ("fault", "other fault"),
    ("snapshot", "snapshot sent or installed"),
    ("own", "snapshot made"),
    ("write", "write"),
    ("read", "read"),
    ("other", "lease, lock, election"),
    ("refused", "refused, or a watch that ended"),
    ("lost", "no answer"),
    ("got", "watch response"),
    ("about-record", "what the violation is about"),
)


class _Picture:
    """The canvas on which lanes are drawn one below the other, and the names beside it."""

    __slots__ = (
        "_bottom",
        "_canvas",
        "_marked",
        "_members",
        "_moments",
        "_names",
        "_records",
        "_tops",
    )

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._canvas = Canvas(moments.end)
        self._names: list[str] = []
        self._members = members_of(moments)
        violation = moments.violation
        self._marked = violation.names if violation is not None else []
        self._records = {each.invoked for each in violation.records} if violation else set()
        # The lanes of the requests that the violation is about.
        self._tops: dict[int, float] = {}
        self._bottom = AXIS_HEIGHT

    def page(self) -> str:
        """Return the lanes and their names."""
        lanes = self._canvas
        for member in self._members:
            self._member(member)
        self._network()
        self._operator()
        self._clients()
        height = self._bottom + BAND_HEIGHT
        drawn, lanes.pieces = lanes.pieces, []
        self._axis(height)
        lanes.pieces += drawn
        self._highlights()
        self._ends(height)
        names = "\n".join(self._names)
        return (
            f'<div class="picture"><svg xmlns="http://www.w3.org/2000/svg" class="names" '
            f'width="{NAMES_WIDTH}" height="{number(height)}">\n{names}\n</svg>'
            f"{lanes.svg(height)}</div>"
        )

    def _name(self, bottom: float, name: str, style: str = "name") -> None:
        marked = " marked" if name in self._marked else ""
        self._names.append(
            f'<text class="{style}{marked}" x="8" y="{number(bottom)}">{safe(name)}</text>'
        )

    def _axis(self, height: float) -> None:
        canvas = self._canvas
        halves = int(canvas.seconds * 2)
        for half in range(halves + 1):
            style = "half" if half % 2 else "second"
            canvas.upright(half / 2, AXIS_HEIGHT - 6, height - BAND_HEIGHT, style)
            if half % 2 == 0 or canvas.scale > 100:
                canvas.text(canvas.x(half / 2) + 2, 14, f"{half / 2:g} s", "time")

    # Members.

    def _member(self, member: Member) -> None:
        canvas, top = self._canvas, self._bottom
        tags = self._tags_of(member)
        drawn, canvas.pieces = canvas.pieces, []
        for process in member.processes:
            title = f"{member.name} runs from {process.begin:.3f} to {process.end:.3f}"
            canvas.span(process.begin, process.end, top, _BARS_HEIGHT, "running", title)
        for span in member.spans(Kind.PAUSED):
            title = f"{member.name} {span.what}, from {span.begin:.3f} to {span.end:.3f}"
            canvas.span(span.begin, span.end, top, _BARS_HEIGHT, "paused", title)
        for process in member.processes:
            self._process(member.name, process, top, tags)
        for span in member.spans(Kind.PAUSED):
            canvas.span(span.begin, span.end, top, ROLE_HEIGHT, "standstill")
        for span, side in partitions_of(self._moments):
            if member.name in side:
                title = f"{span.what}, from {span.begin:.3f} to {span.end:.3f}"
                canvas.span(span.begin, span.end, top + ROLE_HEIGHT, CUT_HEIGHT, "cut", title)
        for kind, lasting in _LASTING.items():
            for span in member.spans(kind):
                title = f"{member.name} {span.what}"
                canvas.span(span.begin, span.end, top + _BARS_HEIGHT - 5, 5.0, lasting, title)
        height = _BARS_HEIGHT + tags.draw(top + _BARS_HEIGHT, TAG_ROWS_MAX)
        lane, canvas.pieces = canvas.pieces, drawn
        self._lane(member.name, top, height)
        canvas.pieces += lane
        self._name(top + 16, member.name)
        self._bottom = top + height + LANE_GAP

    def _lane(self, name: str, top: float, height: float) -> None:
        style = "lane row-marked" if name in self._marked else "lane"
        self._canvas.span(0.0, self._canvas.seconds, top, height, style)

    def _process(self, name: str, process: Process, top: float, tags: Tags) -> None:
        canvas = self._canvas
        up_at = process.states[0].at if process.states else process.end
        if up_at > process.begin:
            title = f"{name} starts at {process.begin:.3f}"
            canvas.span(process.begin, up_at, top, ROLE_HEIGHT, "entering", title)
        for office in process.offices():
            style, does = _ROLES[office.role]
            if office.is_learner:
                style, does = "learner", "learns in"
            title = f"{name} {does} term {office.term}, {office.begin:.3f} to {office.end:.3f}"
            leads = office.role == Role.LEADER
            canvas.span(
                office.begin, office.end, top, ROLE_HEIGHT, style, title, 6.0 if leads else 1.0
            )
            words = f"leads {office.term}" if leads else f"{office.term}"
            if canvas.x(office.end) - canvas.x(office.begin) > 7 * len(words):
                left = canvas.x(office.begin) + 3
                canvas.text(left, top + 14, words, "term" if leads else "weak")
            elif leads:
                tags.add(office.begin, words, "tag leads", title)
        self._indexes(name, process, top + ROLE_HEIGHT + CUT_HEIGHT + STEPS_HEIGHT)

    def _indexes(self, name: str, process: Process, floor: float) -> None:
        """Draw the commit index and the applied index of a process."""
        states = process.states
        if not states:
            return
        canvas = self._canvas
        highest = max(each.committed for each in chain.from_iterable(self._moments.states.values()))

        def height(index: int) -> float:
            return floor - (STEPS_HEIGHT - 10) * index / max(highest, 1)

        last = states[-1]
        title = (
            f"{name}: committed {states[0].committed} to {last.committed}, applied "
            f"{states[0].applied} to {last.applied}, revision {last.revision}"
        )
        committed = [(each.at, height(each.committed)) for each in states]
        applied = [(each.at, height(each.applied)) for each in states]
        canvas.steps(committed, process.end, "committed", title)
        canvas.steps(applied, process.end, "applied", title)
        # A number now and then, where there is room and the applied index has changed.
        free, told = canvas.x(process.begin), -1
        for state in (*states, last._replace(at=process.end)):
            x = canvas.x(state.at)
            if state.applied != told and x >= free and x < canvas.x(process.end) - 16:
                words = f"{state.applied}"
                title = (
                    f"{state.at:.3f} {name}: committed {state.committed}, applied "
                    f"{state.applied}, revision {state.revision}"
                )
                canvas.text(x + 2, height(state.applied) - 3, words, "index", title)
                free, told = x + 48, state.applied

    def _tags_of(self, member: Member) -> Tags:
        tags = Tags(self._canvas)
        violation = self._moments.violation
        for record in violation.records if violation is not None else ():
            if member.name == f"m{record.member}":
                title = told_of(record)
                tags.add(record.started, f"#{record.invoked}", "tag about-member", title)
        for event in _without_repetition(member.events):
            words, style = _WORDS[event.kind]
            tags.add(event.at, words, f"tag {style}", f"{event.at:.6f} {member.name} {event.what}")
        for process in member.processes:
            for state, is_installed in process.snapshots():
                title = f"{state.at:.6f} {member.name} "
                if is_installed:
                    words = f"installs {state.snapshot}"
                    tags.add(state.at, words, "tag snapshot", title + words)
                else:
                    title += f"makes a snapshot at {state.snapshot}"
                    tags.add(state.at, f"snap {state.snapshot}", "tag own", title)
        return tags

    # Everything else.

    def _network(self) -> None:
        canvas, top = self._canvas, self._bottom
        height = 20.0
        self._lane("net", top, height)
        for span, side in partitions_of(self._moments):
            title = f"{span.what}, from {span.begin:.3f} to {span.end:.3f}"
            canvas.span(span.begin, span.end, top + 2, height - 4, "partition", title)
            words = span.what if canvas.x(span.end - span.begin) > 110 else " ".join(side)
            if canvas.x(span.end - span.begin) > 5.6 * len(words) + 6:
                canvas.text(canvas.x(span.begin) + 4, top + 14, words, "inside")
        self._name(top + 15, "network")
        self._bottom = top + height + LANE_GAP

    def _operator(self) -> None:
        told = [each for each in self._moments.events if each.who in ("op", "dir")]
        if not told:
            return
        canvas, top = self._canvas, self._bottom
        tags = Tags(canvas)
        for event in told:
            tags.add(event.at, event.what, "tag operator", f"{event.at:.6f} {event.what}")
        drawn, canvas.pieces = canvas.pieces, []
        height = tags.draw(top, TAG_ROWS_MAX)
        lane, canvas.pieces = canvas.pieces, drawn
        self._lane("op", top, height)
        canvas.pieces += lane
        self._name(top + 15, "operator")
        self._bottom = top + height + LANE_GAP

    def _clients(self) -> None:
        canvas, moments = self._canvas, self._moments
        self._name(self._bottom + 12, "clients")
        self._bottom += 18
        for name in clients_of(moments):
            top = self._bottom
            self._lane(name, top, CLIENT_HEIGHT - 1)
            events = moments.of(name)
            for span in watches_of(events, moments.end):
                title = f"{name} {span.what}, {span.begin:.3f} to {span.end:.3f}"
                canvas.span(span.begin, span.end, top + 3, CLIENT_HEIGHT - 7, "watch", title)
            for event in events:
                if event.until > event.at:
                    # A user's program is paused, or cut off from all members.
                    title = f"{event.at:.6f} {name} {event.what}"
                    canvas.span(event.at, event.until, top, CLIENT_HEIGHT - 1, "paused", title)
                elif event.kind is not Kind.WATCH_BEGUN:
                    style = "got" if event.kind is Kind.WATCH_GOT else "lost-watch"
                    title = f"{event.at:.6f} {name} {event.what}"
                    canvas.span(event.at, event.at, top + 1, CLIENT_HEIGHT - 3, style, title, 2.0)
            for record in moments.asked.get(name, ()):
                self._request(name, record, top)
            self._name(top + 9, name, "client")
            self._bottom = top + CLIENT_HEIGHT

    def _request(self, name: str, record: Record, top: float) -> None:
        canvas = self._canvas
        end = record.finished or canvas.seconds
        style = style_of(record)
        if record.invoked in self._records:
            self._tops[record.invoked] = top
            style = "about-record"
        title = f"{name} {told_of(record)}"
        identity = f"request-{record.invoked}"
        height = CLIENT_HEIGHT - 3
        canvas.span(record.started, end, top + 1, height, style, title, 3.0, identity)

    # The end of the run.

    def _highlights(self) -> None:
        """Mark the time of each request that the violation is about, and draw a ring around it."""
        canvas, violation = self._canvas, self._moments.violation
        for record in violation.records if violation is not None else ():
            end = record.finished or canvas.seconds
            height = self._bottom - AXIS_HEIGHT
            canvas.span(record.started, end, AXIS_HEIGHT, height, "about", width_min=3.0)
            top = self._tops.get(record.invoked)
            if top is not None:
                left, width = canvas.x(record.started), max(canvas.x(end - record.started), 3.0)
                canvas.add(
                    f'<rect class="ring" x="{number(left - 4)}" y="{number(top - 3)}" '
                    f'width="{number(width + 8)}" height="{number(CLIENT_HEIGHT + 5)}" rx="4"'
                )

    def _ends(self, height: float) -> None:
        canvas, violation = self._canvas, self._moments.violation
        for event in self._moments.of("---"):
            canvas.upright(event.at, AXIS_HEIGHT - 8, height - BAND_HEIGHT, "peace", event.what)
            canvas.text(canvas.x(event.at) + 4, height - 4, event.what, "peace-word")
        if violation is not None:
            canvas.upright(
                canvas.seconds, AXIS_HEIGHT - 8, height - BAND_HEIGHT, "violated", f"{violation}"
            )
            canvas.text(canvas.x(canvas.seconds) + 4, height - 4, "violation", "violated-word")


def _without_repetition(events: list[Moment]) -> list[Moment]:
    """Return the events that a lane shows, without ends that follow from another event."""
    kept: list[Moment] = []
    for event in events:
        if event.kind not in _WORDS:
            continue
        follows = event.kind is Kind.KILLED and kept and kept[-1].at == event.at
        if not follows:
            kept.append(event)
    return kept


def style_of(record: Record) -> str:
    """Return the style of a request: its kind, or that it failed."""
    if record.response is None:
        return "lost"
    if isinstance(record.response, Status):
        return "refused"
    name = type(record.request).__name__
    return "write" if name in _WRITES else "read" if name in _READS else "other"


def told_of(record: Record) -> str:
    """Return a request and its outcome in words."""
    answered = isinstance(record.response, Status) or record.response is None
    result = describe_result(record.response if answered else b"", record.response)
    until = f"{record.finished:.6f}" if record.finished else "the end"
    # The library does not report which member it asked.
    member = f"at m{record.member} " if record.member else ""
    return (
        f"{record.kind} #{record.invoked} {member}"
        f"{describe_request(record.request)} = {result}\n{record.started:.6f} to {until}"
    )


def draw(moments: Moments, heading: str, notes: Sequence[str] = ()) -> str:
    """Return the page of a run; `notes` say what its seed has drawn."""
    picture = _Picture(moments).page()
    violation = moments.violation
    if violation is None:
        found = '<p class="fine">nothing violated</p>'
    else:
        links = "".join(
            f'<div>about <a href="#request-{each.invoked}">#{each.invoked}</a>: '
            f"{safe(told_of(each))}</div>"
            for each in violation.records
        )
        found = (
            f'<div class="violation"><h2>violated at {moments.end:.6f} s: '
            f"{safe(violation.guarantee)}</h2><pre>{safe(violation.text)}</pre>{links}</div>"
        )
    legend = "".join(
        f'<span><svg xmlns="http://www.w3.org/2000/svg" width="14" height="12">'
        f'<rect class="{style}" x="1" y="1" width="12" height="10"/></svg>{safe(words)}</span>'
        for style, words in _LEGEND
    )
    lines = (
        '<span><svg xmlns="http://www.w3.org/2000/svg" width="26" height="12">'
        '<path class="committed" d="M0 3H26"/><path class="applied" d="M0 9H26"/></svg>'
        "index committed, index applied</span>"
    )
    drawn = safe("\n".join(notes))
    return (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head>'
        f'<meta charset="utf-8"/><title>{safe(heading)}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{safe(heading)}</h1>{found}\n"
        f'<div class="legend">{legend}{lines}</div>\n{picture}\n'
        f"<details><summary>what the seed has drawn</summary><pre>{drawn}</pre></details>\n"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )
