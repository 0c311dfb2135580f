"""How a process without a log finds its place: production's requests, over the machine's port.

Meanwhile nothing listens at the port. Requests and answers are lost, delayed and broken off like
everything between machines, and the members that answer may lag behind or have been removed.
"""

from collections.abc import Callable, Generator, Sequence

from kvorum.server.peer.cluster.answers import MEMBERS_PATH
from kvorum.server.peer.cluster.exchanges import Answer
from kvorum.server.peer.cluster.joining import GetRequest, RequestRunner, Start
from kvorum.sim.links import Port
from kvorum.state.membership.bootstrap import is_bootstrapped
from kvorum.state.membership.documents import DocumentError, MemberDocument, decode_members


class Entrance:
    """The search of one process for its place. `ask` is called before every request."""

    __slots__ = ("_inquiry", "_port", "member_lists")

    def __init__(
        self,
        port: Port,
        steps: Generator[GetRequest, Answer | None, Start],
        ask: Callable[[], None],
        now: float,
    ) -> None:
        self._port = port
        self.member_lists: list[Sequence[MemberDocument]] = []
        """The lists of members that answers contained, in order."""
        self._inquiry = RequestRunner(self._watched(steps, ask), port.dialer, now)

    def advance(self, now: float) -> Start | float:
        """Take the answers that arrived; return where the process starts, or when to call again.

        Raises BootstrapError if it may not start.
        """
        inquiry = self._inquiry
        inquiry.handle_answers(self._port.dialer.poll(), now)
        look_at = inquiry.pass_time(now)
        return inquiry.value if inquiry.is_done else look_at

    def _watched(
        self, steps: Generator[GetRequest, Answer | None, Start], ask: Callable[[], None]
    ) -> Generator[GetRequest, Answer | None, Start]:
        """Run the steps, and record the lists of members in the answers."""
        answer: Answer | None = None
        while True:
            try:
                asking = steps.send(answer)
            except StopIteration as end:
                start: Start = end.value
                return start
            ask()
            answer = yield asking
            if asking.target == MEMBERS_PATH and answer is not None and answer.status == 200:
                try:
                    self.member_lists.append(decode_members(answer.body))
                except DocumentError as error:
                    raise AssertionError(f"{asking.url} told what no member tells") from error

    def is_known(self, member_id: int) -> bool:
        """Return whether any answer says that this member has run before."""
        return any(is_bootstrapped(members, member_id) for members in self.member_lists)
