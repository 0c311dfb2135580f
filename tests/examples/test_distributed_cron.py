"""A job of the example is done once at each time, and again only if somebody crashed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.distributed_cron import PREFIX, Job, run_due
from kvorum.testing import Store


def test_each_time_once(kvorum: Store) -> None:
    done: list[int] = []
    job = Job("report", 60, done.append)
    clients = [kvorum.client(timeout=30) for _ in range(4)]
    with ThreadPoolExecutor(len(clients)) as threads:
        for now in (120.0, 121.5, 179.9, 180.0, 300.0):
            calls = [threads.submit(run_due, client, job, now) for client in clients]
            assert sum(call.result() for call in calls) == (now in (120.0, 180.0, 300.0))
    assert done == [120, 180, 300]


def test_a_job_that_failed_is_done_by_another(kvorum: Store) -> None:
    def fail(due: int) -> None:
        raise RuntimeError(f"not at {due}")

    done: list[int] = []
    client = kvorum.client()
    with pytest.raises(RuntimeError, match="not at 60"):
        run_due(client, Job("report", 60, fail), 61)
    assert client.count(prefix=PREFIX) == 0
    assert run_due(client, Job("report", 60, done.append), 62)
    assert not run_due(client, Job("report", 60, done.append), 63)
    assert done == [60]
