"""Scripts of completion: real shells complete with them what the tree of commands has."""

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

from kvorum.tools.cli.completion import levels, script
from kvorum.tools.ctl.commands import ROOT
from tests.tools.ctl.duel import Duel, run_here
from tests.tools.ctl.terminal import terminal_of

NAMES = sorted(each.name for each in ROOT.children)
CASES = [
    (["le"], ["lease"]),
    (["de"], ["defrag", "del"]),
    ([""], NAMES),
    (["--endpoints", "get", "--debug", ""], NAMES),
    (["--endpoints=get", "mem"], ["member"]),
    (["lease", ""], ["grant", "keep-alive", "list", "revoke", "timetolive"]),
    (["lease", "--hex", "gr"], ["grant"]),
    (["-w", ""], ["fields", "json", "protobuf", "simple", "table"]),
    (["get", "--write-out", "p"], ["protobuf"]),
    (["get", "--prefix", "--sort-by", "V"], ["VALUE", "VERSION"]),
    (["make-mirror", "--prefix", "--dest-pr"], []),
    (["get", "--prefix", "--sort"], ["--sort-by"]),
    (["get", "--endp"], ["--endpoints"]),
    (["endpoint", "status", "--cl"], ["--cluster"]),
    (["completion", ""], ["bash", "fish", "powershell", "zsh"]),
    (["get", ""], []),
]
"""Words of a command line, the last of them unfinished, and what is offered."""


def bash_offers(words: list[str]) -> list[str]:
    text = script(ROOT, "bash") + (
        'COMP_WORDS=(kvorumctl "$@"); COMP_CWORD=$#; _kvorumctl\n'
        '(( ${#COMPREPLY[@]} )) && printf "%s\\n" "${COMPREPLY[@]}"; exit 0'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", text, "bash", *words], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("words", "offers"), CASES, ids=" ".join)
def test_bash_completes(words: list[str], offers: list[str]) -> None:
    assert sorted(bash_offers(words)) == offers


def test_bash_takes_flags_with_values_apart() -> None:
    assert bash_offers(["get", "--write-out", "=", "j"]) == ["json"]
    assert bash_offers(["get", "--order", "="]) == ["ASCEND", "DESCEND"]
    assert bash_offers(["--write-out", "=", "json", "lease", "gr"]) == ["grant"]


def test_bash_offers_files_where_files_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.pem").touch()
    monkeypatch.chdir(tmp_path)
    for words in (["--cacert", "o"], ["snapshot", "save", ""], ["import", "one"]):
        assert bash_offers(words) == ["one.pem"]


def test_every_flag_of_every_command_is_offered() -> None:
    text = script(ROOT, "bash")
    calls = []
    expected = []
    for level in levels(ROOT):
        words = level.at.split()
        calls.append(
            f"COMP_WORDS=(kvorumctl {' '.join(words)} --); COMP_CWORD={len(words) + 1}; "
            "_kvorumctl; echo ${COMPREPLY[*]}\n"
        )
        names = {f"--{each.name}" for each in (*level.flags, *ROOT.passed_on)}
        expected.append(names | {"--help"})
    done = subprocess.run(
        ["bash", "--norc"], input=text + "".join(calls), capture_output=True, text=True, check=True
    )
    assert [set(line.split()) for line in done.stdout.splitlines()] == expected


@pytest.mark.skipif(which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(("words", "offers"), CASES, ids=" ".join)
def test_fish_completes(words: list[str], offers: list[str], tmp_path: Path) -> None:
    path = tmp_path / "kvorumctl.fish"
    path.write_text(script(ROOT, "fish"))
    line = " ".join(["kvorumctl", *words])
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {path}; complete -C $argv[1]", line],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert sorted(found) == offers, done.stderr


@pytest.mark.skipif(which("zsh") is None, reason="there is no zsh")
def test_zsh_completes(tmp_path: Path) -> None:
    path = tmp_path / "kvorumctl.zsh"
    path.write_text(script(ROOT, "zsh"))
    with terminal_of(["zsh", "-f", "-i"], {"HOME": str(tmp_path), "PS1": "> "}) as zsh:
        zsh.type(f"autoload -U compinit; compinit -u; source {path}\n")
        # A key that tells what the line is, however it was drawn.
        zsh.type("show() { print -r \"<$BUFFER>\"; BUFFER= }; zle -N show; bindkey '^T' show\n")
        zsh.type("echo rea''dy\n")
        zsh.wait_for(r"ready\r")
        for typed, completed in (
            ("kvorumctl mem", "kvorumctl member "),
            ("kvorumctl member pro", "kvorumctl member promote "),
            ("kvorumctl get --sort", "kvorumctl get --sort-by "),
            ("kvorumctl get --prefix --sort-by VE", "kvorumctl get --prefix --sort-by VERSION "),
            ("kvorumctl --write-out=js", "kvorumctl --write-out=json "),
        ):
            zsh.type(f"{typed}\t\x14")
            zsh.wait_for(f"<{completed}>")
        zsh.type("exit\n")
        assert zsh.end() == 0


def test_misuse_is_reported_as_etcdctl_does(duel: Duel) -> None:
    for words in ((), ("foo",), ("bash", "zsh"), ("bash", "--nosuch")):
        # The help that follows is in our own words.
        duel.compare("completion", *words, change=lambda data: data.partition(b"Usage:")[0])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_the_command_writes_the_script(shell: str) -> None:
    assert run_here(["completion", shell]).out.decode() == script(ROOT, shell)
