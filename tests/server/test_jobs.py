"""The order of jobs holds for hands of any speed: drawn moments, drawn failures, all places.

The hands here do no work. They only say when each job has ended, in any order that real hands could
have, and write down what they were given.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kvorum.member.jobs import Barrier, ExecutorKind, Job, Nothing, Work, ignore
from kvorum.server.jobs import Ended, JobOrder, Outcome
from kvorum.storage.wal import AppendLog

SMALL, LARGE = 10, 1000
FAILED = OSError("no room")


class Planned(NamedTuple):
    """A job, and its outcome."""

    place: ExecutorKind
    size: int = 0
    """Of an append; 0: another kind of work."""
    fails: bool = False
    is_borne: bool = False
    is_awaited: bool = False
    is_barrier: bool = False


class DrawnHands:
    """Hands that end what they do when a test says so."""

    def __init__(self, fails: set[Job], is_quick: Callable[[], bool]) -> None:
        self.ended: Callable[[Job, object, Exception | None], None]
        self.begun: list[Job] = []
        self._fails = fails
        self._is_quick = is_quick
        self._writer: deque[Job] = deque()
        self._written: list[Job] = []
        self._busy: dict[ExecutorKind, deque[Job]] = {place: deque() for place in ExecutorKind}
        self._has_writer_failed = False

    @property
    def is_quick(self) -> bool:
        return self._is_quick()

    @property
    def is_writing(self) -> bool:
        return bool(self._writer or self._busy[ExecutorKind.LOG] or self._written)

    def outcome(self, job: Job) -> Outcome:
        return (None, FAILED) if job in self._fails else (job, None)

    def append_here(self, job: Job) -> Exception | None:
        assert not self.is_writing, "the loop writes beside another hand"
        self.begun.append(job)
        return self.outcome(job)[1]

    def append(self, job: Job) -> None:
        assert not self._busy[ExecutorKind.LOG], "the writer works beside the thread"
        self.begun.append(job)
        self._writer.append(job)

    def begin(self, job: Job) -> None:
        if job.executor is ExecutorKind.LOG:
            assert not self.is_writing, "the thread works beside the writer"
        if job.executor is ExecutorKind.HELPER:
            assert not self._busy[ExecutorKind.HELPER], "the helper is busy"
            assert not isinstance(job.work, Barrier), "a barrier would start the helper"
        self.begun.append(job)
        self._busy[job.executor].append(job)

    def wait_for(self, job: Job) -> Outcome:
        assert self._busy[ExecutorKind.FLUSHER].popleft() is job
        return self.outcome(job)

    def collect(self) -> None:
        written, self._written = self._written, []
        for job in written:
            _, error = self.outcome(job)
            self._has_writer_failed |= error is not None
            self.ended(job, None, FAILED if self._has_writer_failed else None)

    def go_on(self, choose: Callable[[int], int]) -> None:
        """Let one hand end something."""
        if self._writer and choose(2):
            self._written.append(self._writer.popleft())
            return
        busy = [jobs for jobs in self._busy.values() if jobs]
        if not busy:
            return
        jobs = busy[choose(len(busy))]
        # Of the pool, any may end first.
        at = choose(min(2, len(jobs))) if jobs[0].executor is ExecutorKind.POOL else 0
        job = jobs[at]
        del jobs[at]
        self.ended(job, *self.outcome(job))


PLANNED = st.one_of(
    st.builds(
        Planned,
        st.just(ExecutorKind.LOG),
        st.sampled_from([0, SMALL, LARGE]),
        fails=st.booleans(),
        is_borne=st.booleans(),
        is_awaited=st.just(False),
        is_barrier=st.just(False),
    ),
    st.builds(
        Planned,
        st.just(ExecutorKind.FLUSHER),
        st.just(0),
        fails=st.booleans(),
        is_borne=st.booleans(),
        is_awaited=st.booleans(),
        is_barrier=st.just(False),
    ),
    st.builds(
        Planned,
        st.sampled_from([ExecutorKind.HELPER, ExecutorKind.POOL]),
        st.just(0),
        fails=st.booleans(),
        is_borne=st.booleans(),
        is_awaited=st.just(False),
        is_barrier=st.just(False),
    ),
    st.just(Planned(ExecutorKind.HELPER, is_barrier=True)),
)


def make(planned: Planned) -> Job:
    work: Work = AppendLog(3, 0, bytes(planned.size)) if planned.size else Nothing()
    if planned.is_barrier:
        work = Barrier()
    is_borne = planned.is_borne and not planned.size
    on_failure = ignore if is_borne else None
    return Job(planned.place, work, ignore, on_failure, is_awaited=planned.is_awaited)


@given(plan=st.lists(PLANNED, max_size=14), data=st.data())
def test_jobs_run_and_end_in_order(plan: list[Planned], data: st.DataObject) -> None:
    def choose(below: int) -> int:
        return data.draw(st.integers(0, below - 1))

    jobs = [make(planned) for planned in plan]
    fails = {job for job, planned in zip(jobs, plan, strict=True) if planned.fails}
    executor = DrawnHands(fails, lambda: data.draw(st.booleans()))
    order = JobOrder(executor)
    ended: list[Ended] = []
    left = deque(jobs)
    for _ in range(4 * len(jobs) + 4):
        if left and choose(2):
            order.submit([left.popleft() for _ in range(1 + choose(len(left)))], SMALL)
        else:
            executor.go_on(choose)
        ended += order.take_ended()
    order.submit(list(left), SMALL)
    for _ in range(8 * len(jobs)):
        executor.go_on(lambda _: 0)
        executor.go_on(lambda below: below - 1)
        ended += order.take_ended()

    given_to = [job for job in jobs if job.executor is ExecutorKind.LOG]
    first_failed = next(
        (at for at, job in enumerate(given_to) if job in fails and job.on_failure is None), None
    )
    log_begun = [job for job in executor.begun if job.executor is ExecutorKind.LOG]
    assert log_begun == given_to[: len(log_begun)]
    if first_failed is None:
        assert log_begun == given_to
    else:
        # Appends may follow a failing one before that is known; they fail with it.
        assert len(log_begun) > first_failed
        assert all(isinstance(job.work, AppendLog) for job in log_begun[first_failed + 1 :])
        outcomes = [error for job, _, error in ended if job.executor is ExecutorKind.LOG]
        assert all(error is FAILED for error in outcomes[first_failed:])
    for place in (ExecutorKind.LOG, ExecutorKind.FLUSHER, ExecutorKind.HELPER):
        of_place = [job for job in jobs if job.executor is place]
        found = [job for job, _, _ in ended if job.executor is place]
        assert found == (log_begun if place is ExecutorKind.LOG else of_place)
    assert {job for job, _, _ in ended if job.executor is ExecutorKind.POOL} == {
        job for job in jobs if job.executor is ExecutorKind.POOL
    }
    assert all(
        (error is FAILED) == (job in fails)
        for job, _, error in ended
        if job.executor is not ExecutorKind.LOG
    )


def test_a_barrier_at_an_idle_helper_ends_at_once() -> None:
    executor = DrawnHands(set(), lambda: True)
    order = JobOrder(executor)
    barrier = Job(ExecutorKind.HELPER, Barrier())
    order.submit([barrier])
    assert order.take_ended() == [(barrier, None, None)]
    assert not executor.begun
