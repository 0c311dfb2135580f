"""A running command: its flags and arguments, its client, its output."""

from __future__ import annotations

from kvorum.tools.cli import invocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol, TypeVar

    from kvorum.client.rpcs import Rpc
    from kvorum.client.sync.client import Client
    from kvorum.tools.cli.commands import Command
    from kvorum.tools.cli.output import ResultOutput
    from kvorum.tools.cli.parsing import Given
    from kvorum.tools.ctl.connecting import Secrets

    M = TypeVar("M", covariant=True)
    T = TypeVar("T")

    class Kind(Protocol[M]):
        """A class of protobuf messages."""

        def FromString(self, data: bytes) -> M:  # noqa: N802
            """Read a message."""
            ...


REQUEST_BYTES_MAX = 2 << 20
ANSWER_BYTES_MAX = (1 << 31) - 1


class CtlInvocation(invocation.Invocation):
    """One run of a command.

    The global flags take effect at the first use of `output` or `client`. Commands check their
    arguments before that, as etcdctl does.
    """

    __slots__ = ("secrets",)

    def __init__(self, root: Command, given: Given) -> None:
        super().__init__(root, given)
        self.secrets: Secrets | None = None
        """The credentials, once known: the command prompts for a password at most once."""

    def make_output(self) -> ResultOutput:
        """Return an output in the format that `--write-out` names."""
        from kvorum.tools.cli.output import ResultOutput

        return ResultOutput(self.text("write-out"), is_hex=self.switch("hex"))

    # The cluster.

    def timeout(self) -> float:
        """Return the time limit of a short command, in seconds."""
        return self.seconds("command-timeout")

    def configure(self) -> None:
        """Apply the environment variables that set global flags."""
        from kvorum.tools.ctl.environment import apply_environment

        apply_environment(self.given, self.root)

    def client(
        self, endpoints: Sequence[str] | None = None, *, is_logged_in: bool = True
    ) -> Client:
        """Return a client of the cluster, or of these endpoints alone; the caller closes it.

        With a user, the client logs in here, so that a wrong password fails before any work.
        """
        from kvorum.tools.ctl.connecting import connect, logged_in

        _ = self.output
        client = connect(self, endpoints)
        return logged_in(client) if is_logged_in else client

    def ask(
        self,
        client: Client,
        rpc: Rpc,
        request: Any,
        kind: Kind[M],
        *,
        timeout: float | None = None,
        at: str | None = None,
    ) -> M:
        """Make a call within `--command-timeout`, or within another time, and return the answer."""
        return self.call(
            client, rpc, request.SerializeToString(), kind.FromString, timeout=timeout, at=at
        )

    def call(
        self,
        client: Client,
        rpc: Rpc,
        message: bytes,
        decode: Callable[[bytes], T],
        *,
        timeout: float | None = None,
        at: str | None = None,
    ) -> T:
        """Make a call as `ask` does, with the request and the answer as bytes."""
        from kvorum.client.operations import Operation

        self._check_size(
            "trying to send", message, self.number("max-request-bytes"), REQUEST_BYTES_MAX
        )

        def checked(answer: bytes) -> T:
            self._check_size(
                "grpc: received", answer, self.number("max-recv-bytes"), ANSWER_BYTES_MAX
            )
            return decode(answer)

        seconds = self.timeout() if timeout is None else timeout
        if seconds <= 0:
            from kvorum.client.errors import DeadlineError

            # An open connection could answer before the clock shows the timeout.
            raise DeadlineError(f"{rpc.path} was not given any time")
        return client.run(Operation(rpc, message, checked), seconds, at=at)

    def _check_size(self, what: str, message: bytes, chosen: int, usual: int) -> None:
        limit = chosen if chosen > 0 else usual
        if len(message) > limit:
            from kvorum.tools.cli.errors import CommandError

            raise CommandError(
                f"rpc error: code = ResourceExhausted desc = {what} message larger than max "
                f"({len(message)} vs. {limit})"
            )
