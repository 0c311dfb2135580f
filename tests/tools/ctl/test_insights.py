"""The commands that etcdctl does not have, beside those that it has."""

from kvorum.tools.cli.commands import Command
from kvorum.tools.ctl.commands import ROOT
from kvorum.tools.ctl.insights import INSIGHT_COMMANDS
from tests.tools.ctl.duel import run_here


def test_what_etcdctl_shortens_means_the_same() -> None:
    theirs = [each for each in ROOT.children if each not in INSIGHT_COMMANDS]
    for each in ROOT.children:
        for length in range(1, len(each.name)):
            word = each.name[:length]
            alike = [other for other in theirs if other.name.startswith(word)]
            whole = [other for other in ROOT.children if other.name == word]
            expected = whole or (alike if len(alike) == 1 else [])
            assert ROOT.child(word) is (expected[0] if expected else None), word


def test_every_command_and_its_help_can_be_found() -> None:
    def check(command: Command, words: list[str]) -> None:
        done = run_here([*words, "--help"])
        assert done.code == 0
        assert command.path.encode() in done.out
        for flag in command.flags:
            assert f"--{flag.name}".encode() in done.out
        for child in command.children:
            check(child, [*words, child.name])

    for each in INSIGHT_COMMANDS:
        check(each, [each.name])
        assert each.summary.encode() in run_here(["--help"]).out
