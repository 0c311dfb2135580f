"""What etcd's `benchmark` prints is read as it is meant."""

from hypothesis import given
from hypothesis import strategies as st

from bench.benchmark_tool import Summary, summaries

TIMES = st.floats(1e-9, 100).map(lambda each: float(f"{each:.9f}"))


def printed(per_second: float, slowest: float, p99: float | None) -> str:
    """Return a summary as the tool prints it; it tells no percentile of a few calls."""
    told = [
        "\nSummary:",
        "  Total:\t0.596005513 secs.",
        f"  Slowest:\t{slowest} secs.",
        f"  Requests/sec:\t{per_second}",
        "\nResponse time histogram:",
        "  0.000617416 [1]\t|",
        "\nLatency distribution:",
        "  50% in 0.001041391 secs.",
    ]
    if p99 is not None:
        told += [f"  99% in {p99} secs.", "  99.9% in 77.5 secs."]
    return "\n".join(told) + "\n"


@given(st.lists(st.tuples(st.floats(0.1, 1e6), TIMES, st.none() | TIMES), max_size=4))
def test_every_summary_is_read(told: list[tuple[float, float, float | None]]) -> None:
    output = "bench with linearizable range\n".join(printed(*each) for each in told)
    assert summaries(output) == [
        Summary(rate, slowest if p99 is None else p99) for rate, slowest, p99 in told
    ]
