"""A picture shows what was in the run, marks what was violated, and changes nothing."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvorum.sim.campaign import size_of
from kvorum.sim.picture import draw
from kvorum.sim.plan import draw_plan
from kvorum.sim.planted.search import find
from kvorum.sim.planted.serving import miss_the_last_compare
from kvorum.sim.planted.watching import lose_an_event_at_catch_up
from kvorum.sim.run import Run, memory_directory, simulate, stand_ins_installed
from kvorum.sim.svg import safe
from kvorum.sim.trace import Trace
from kvorum.sim.violation import Violation

REPOSITORY = Path(__file__).parents[2]
SEEDS_MAX = 60
# Runs the command line with a bug in place.
WITH_A_BUG = """
import sys
from kvorum.sim.__main__ import main
from kvorum.sim.planted import index_ahead_of_effects
sys.argv = ["sim", *sys.argv[1:]]
with index_ahead_of_effects():
    sys.exit(main())
"""


def run_of(seed: int, members: int) -> tuple[Run, Trace]:
    """Return a run that has ended, and its trace."""
    trace = Trace()
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        run = Run(draw_plan(seed, members), directory, trace)
        with stand_ins_installed(run):
            assert run.outcome().guarantee == ""
    return run, trace


def a_run_with_a_new_member() -> tuple[Run, Trace]:
    for seed in range(SEEDS_MAX):
        members = size_of(seed)
        plan = draw_plan(seed, members)
        # A cluster that is forced anew behind backups forgets who led before.
        is_changed = plan.faults.change_gap or plan.faults.replace_gap
        if members > 1 and is_changed and plan.backups is None:
            run, trace = run_of(seed, members)
            if any(int(name[1:]) > members for name in started(trace)):
                return run, trace
    raise AssertionError("no member is added in any run")


def started(trace: Trace) -> set[str]:
    """Return who ever ran, as the lines tell it."""
    return {line.split()[1] for line in trace.lines if re.fullmatch(r" *\S+ m\d+ +start", line)}


def elements(page: str, style: str) -> list[ElementTree.Element]:
    """Return the elements of a page that have a class."""
    tree = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    return [each for each in tree.iter() if style in each.get("class", "").split()]


def title(element: ElementTree.Element) -> str:
    found = element.find("{http://www.w3.org/2000/svg}title")
    return "" if found is None else found.text or ""


def texts(page: str, style: str) -> list[str]:
    return [each.text or "" for each in elements(page, style)]


def test_every_member_has_a_lane_and_every_leader_its_terms() -> None:
    run, trace = a_run_with_a_new_member()
    page = draw(trace.moments, "a run")
    lanes = [name for name in texts(page, "name") if re.fullmatch(r"m\d+", name)]
    assert sorted(lanes) == sorted(started(trace))
    led = [
        re.match(r"m(\d+) leads term (\d+), ", title(each))
        for each in elements(page, "leader")
        if title(each)
    ]
    assert {int(each[2]): int(each[1]) for each in led if each} == run.cluster.leaders
    assert len(run.cluster.leaders) > 1


def test_the_steps_of_directed_faults_are_shown() -> None:
    plans = (draw_plan(seed, size_of(seed)) for seed in range(SEEDS_MAX))
    plan = next(plan for plan in plans if plan.faults.sleeper_gap)
    _, trace = run_of(plan.seed, plan.members)
    told = [line.partition(" dir ")[2] for line in trace.lines if " dir " in line]
    titles = [title(each) for each in elements(draw(trace.moments, "a run", []), "operator")]
    assert told and all(any(each.endswith(what) for each in titles) for what in told)


def test_every_request_is_there_with_its_answer() -> None:
    run, trace = run_of(4, 3)
    page = draw(trace.moments, "a run")
    ids = re.findall(r'id="request-(\d+)"', page)
    asked = [each for each in run.cluster.history.records if each.client]
    assert sorted(map(int, ids)) == sorted(each.invoked for each in asked)
    answered = [each for each in asked if each.is_answered]
    shown = [*elements(page, "write"), *elements(page, "read"), *elements(page, "other")]
    assert sum("request-" in each.get("id", "") for each in shown) == len(answered)


@pytest.mark.sources
@pytest.mark.long
def test_the_violated_request_is_marked() -> None:
    found = find(miss_the_last_compare, 20_000)
    assert found is not None and found.guarantee == "answers are explained by the history"
    trace = Trace()
    with miss_the_last_compare():
        simulate(found.seed, found.members, trace)
    page = draw(trace.moments, "a run")
    number = re.search(r"#(\d+) at m(\d+), answered", found.violation)
    assert number
    marked = [each for each in elements(page, "about-record") if each.get("id")]
    assert [each.get("id") for each in marked] == [f"request-{number[1]}"]
    assert f"#{number[1]} at m{number[2]} " in title(marked[0])
    assert len(elements(page, "ring")) == len(elements(page, "about")) == 1
    assert f"#{number[1]}" in texts(page, "tagged"), "at the member, too"
    assert len(elements(page, "violated")) == 1
    assert found.guarantee in page and safe(found.violation.splitlines()[0]) in page


@pytest.mark.sources
@pytest.mark.long
def test_the_watcher_that_a_violation_is_about_is_marked() -> None:
    found = find(lose_an_event_at_catch_up)
    assert found is not None and found.guarantee.startswith("watch: ")
    trace = Trace()
    with lose_an_event_at_catch_up():
        simulate(found.seed, found.members, trace)
    page = draw(trace.moments, "a run")
    assert texts(page, "marked") == [found.violation.split()[0]]


def test_the_members_that_a_violation_is_about_are_marked() -> None:
    trace = Trace()
    simulate(0, 3, trace)
    trace.moments.violation = Violation("the member serves", "m2 raised nothing")
    assert texts(draw(trace.moments, "a run"), "marked") == ["m2"]
    trace.moments.violation = Violation("one leader per term", "two lead", "m1", "m3")
    assert texts(draw(trace.moments, "a run"), "marked") == ["m1", "m3"]


@pytest.mark.long
@pytest.mark.parametrize(("seed", "members"), [(1, 1), (2, 3)])
def test_nothing_depends_on_the_recording(seed: int, members: int) -> None:
    trace, again = Trace(), Trace()
    alone, traced = simulate(seed, members), simulate(seed, members, trace)
    assert traced == alone
    lines = list(trace.lines)
    page = draw(trace.moments, "a run")
    simulate(seed, members, again)
    assert trace.lines == lines == again.lines
    assert draw(again.moments, "a run") == page


def test_text_may_be_anything() -> None:
    element = ElementTree.fromstring(f"<a>{safe(chr(0) + '<&' + chr(0xD800) + chr(10))}</a>")
    assert element.text == "\\x00<&\\ud800\n"


def command_line(directory: Path, hash_seed: str, *command: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.long
def test_a_replay_draws_one_picture_under_two_hash_seeds(tmp_path: Path) -> None:
    replay = ("-m", "kvorum.sim", "--replay", "3", "--members", "3")
    told = command_line(tmp_path, "1", *replay, "--plot", "picture.html")
    assert "picture: picture.html" in told.splitlines()
    command_line(tmp_path, "2", *replay, "--plot")
    assert (tmp_path / "picture.html").read_text() == (tmp_path / "sim-3.html").read_text()


@pytest.mark.sources
def test_a_campaign_draws_the_seeds_that_fail(tmp_path: Path) -> None:
    told = command_line(tmp_path, "1", "-c", WITH_A_BUG, "--seeds", "3", "--members", "1", "--plot")
    failed = re.findall(r"failed: seed (\d+), ", told)
    pictures = [f"sim-{seed}.html" for seed in failed]
    assert pictures and sorted(path.name for path in tmp_path.iterdir()) == sorted(pictures)
    for name in pictures:
        assert f"picture: {name}" in told.splitlines()
        assert elements((tmp_path / name).read_text(), "violated")
