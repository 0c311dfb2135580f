"""`completion`: scripts that complete command lines in a shell, made from the tree of commands.

A script holds the whole tree, so that completing starts no program. All four scripts work alike:
they follow the words before the cursor down the tree, past flags and their values. Then they offer
the values of a flag, the flags of a command, or the words that may follow the command. For a file
name, the shell offers its files.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.cli.parsing import HELP

FILES = "<files>"
"""Stands for file names in a list of words."""


class Level(NamedTuple):
    """A command, and what may follow it."""

    at: str
    """The names of the command, with a blank before each; empty for the tool itself."""
    following: list[tuple[str, str]]
    """Subcommands and words, with their summaries; FILES for file names."""
    flags: list[Flag]
    """The flags of the command, without the global flags."""


def completion(invocation: Invocation) -> None:
    """Print the completion script for a shell."""
    invocation.output_line(script(invocation.root, invocation.arguments[0]).rstrip("\n"))


def script(root: Command, shell: str) -> str:
    """Return the completion script for a shell."""
    return _SCRIPTS[shell](root.name, list(levels(root)), [*root.passed_on, HELP])


def levels(command: Command, at: str = "") -> Iterator[Level]:
    """Yield the level of a command, and of all commands below it."""
    below = [each for each in command.children if not each.is_hidden]
    following = [(each.name, each.summary) for each in below]
    following.extend((word, "") for word in command.words)
    if "file" in command.arguments:
        following.append((FILES, ""))
    flags = list(command.flags)
    above: Command | None = command
    while above is not None and above.parent is not None:
        flags.extend(above.passed_on)
        above = above.parent
    yield Level(at, following, [flag for flag in flags if not flag.is_hidden])
    for each in below:
        yield from levels(each, f"{at} {each.name}")


def _names(flag: Flag) -> list[str]:
    return [f"--{flag.name}", *([f"-{flag.short}"] if flag.short else [])]


def _values(flag: Flag) -> tuple[str, ...]:
    return (FILES,) if flag.text.endswith((", a file", ", a directory")) else flag.words


def _quoted(text: str) -> str:
    """Quote for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


# bash and zsh.


def _cases(rows: Sequence[tuple[Sequence[str], str]], indent: str = "    ") -> str:
    """Return the branches of a shell's `case`, leaving out rows without patterns."""
    return "".join(
        f"{indent}{'|'.join(map(_quoted, patterns))}) {action} ;;\n"
        for patterns, action in rows
        if patterns
    )


def _takers(all_levels: Sequence[Level], taken_by_all: Sequence[Flag]) -> list[str]:
    """Return the flags that take a value, as `at flag`; global flags as `flag`."""
    found = [name for flag in taken_by_all if flag.kind != "bool" for name in _names(flag)]
    for level in all_levels:
        for flag in level.flags:
            if flag.kind != "bool":
                found.extend(f"{level.at} {name}" for name in _names(flag))
    return found


def _value_rows(
    all_levels: Sequence[Level], taken_by_all: Sequence[Flag]
) -> list[tuple[list[str], tuple[str, ...]]]:
    rows = [(_names(flag), _values(flag)) for flag in taken_by_all if _values(flag)]
    for level in all_levels:
        rows.extend(
            ([f"{level.at} {name}" for name in _names(flag)], _values(flag))
            for flag in level.flags
            if _values(flag)
        )
    return rows


_WALK = """\
        if [[ -n $flag ]]; then
            flag=
        elif [[ $each == -- ]]; then
            break
        elif [[ $each == -* ]]; then
            last=$each
            [[ $each != *=* ]] && _@TOOL@_takes "$at" "$each" && flag=$each
        elif _@TOOL@_knows "$at $each"; then
            at="$at $each"
        fi
"""

_TABLES = """\
_@TOOL@_knows() {
    case "$1" in
@KNOWN@    *) return 1 ;;
    esac
}

_@TOOL@_takes() {
    case "$2" in
@TAKEN@    esac
    case "$1 $2" in
@TAKEN@    esac
    return 1
}

"""

_BASH = """\
# Completion of @TOOL@ in bash: source it, or save it where bash looks for completions.

@TABLES@_@TOOL@_offers() {
    case "$1" in
@OFFERS@    esac
}

_@TOOL@() {
    local word=${COMP_WORDS[COMP_CWORD]} at= flag= last= each offers i
    for ((i = 1; i < COMP_CWORD; i++)); do
        each=${COMP_WORDS[i]}
        # The shell takes --flag=value apart.
        if [[ $each == = ]]; then
            flag=$last
            continue
        fi
@WALK@    done
    if [[ $word == = ]]; then
        word=
        flag=$last
    fi
    if [[ -n $flag ]]; then
        offers="$(_@TOOL@_offers "$flag")$(_@TOOL@_offers "$at $flag")"
    elif [[ $word == -* ]]; then
        offers="$(_@TOOL@_offers "flags") $(_@TOOL@_offers "flags$at")"
    else
        offers=$(_@TOOL@_offers "after$at")
    fi
    COMPREPLY=()
    if [[ $offers == *'@FILES@'* ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -W "$offers" -- "$word")
    fi
}

complete -F _@TOOL@ @TOOL@
"""


def _bash(tool: str, all_levels: list[Level], taken_by_all: list[Flag]) -> str:
    def echo(words: Sequence[str]) -> str:
        return f"echo {_quoted(' '.join(words))}"

    rows: list[tuple[Sequence[str], str]] = [
        ([f"after{each.at}"], echo([name for name, _ in each.following]))
        for each in all_levels
        if each.following
    ]
    rows.append((["flags"], echo([name for flag in taken_by_all for name in _names(flag)])))
    rows.extend(
        ([f"flags{each.at}"], echo([name for flag in each.flags for name in _names(flag)]))
        for each in all_levels
        if each.at and each.flags
    )
    rows.extend((names, echo(words)) for names, words in _value_rows(all_levels, taken_by_all))
    return _filled(_BASH, tool, all_levels, taken_by_all, OFFERS=_cases(rows))


_ZSH = """\
#compdef @TOOL@
# Completion of @TOOL@ in zsh: source it after compinit, or save it as _@TOOL@ in $fpath.

@TABLES@_@TOOL@_offers() {
    offers=()
    case "$1" in
@OFFERS@    esac
}

_@TOOL@() {
    local word=${words[CURRENT]} at= flag= last= each i
    local -a offers more
    for ((i = 2; i < CURRENT; i++)); do
        each=${words[i]}
@WALK@    done
    if [[ -z $flag && $word == --*=* ]]; then
        flag=${word%%=*}
        compset -P '*='
    fi
    if [[ -n $flag ]]; then
        _@TOOL@_offers "$flag"
        [[ -n $offers ]] || _@TOOL@_offers "$at $flag"
    elif [[ $word == -* ]]; then
        _@TOOL@_offers "flags"
        more=($offers)
        [[ -n $at ]] && _@TOOL@_offers "flags$at" && offers+=($more)
    else
        _@TOOL@_offers "after$at"
    fi
    if [[ $offers == *'@FILES@'* ]]; then
        _files
    else
        _describe '@TOOL@' offers
    fi
}

if [[ $funcstack[1] == _@TOOL@ ]]; then
    _@TOOL@ "$@"
else
    compdef _@TOOL@ @TOOL@
fi
"""


def _zsh(tool: str, all_levels: list[Level], taken_by_all: list[Flag]) -> str:
    def array(pairs: Sequence[tuple[str, str]]) -> str:
        items = " ".join(_quoted(f"{name}:{text}" if text else name) for name, text in pairs)
        return f"offers=({items})"

    def flags(found: Sequence[Flag]) -> str:
        return array([(name, flag.text) for flag in found for name in _names(flag)])

    rows: list[tuple[Sequence[str], str]] = [
        ([f"after{each.at}"], array(each.following)) for each in all_levels if each.following
    ]
    rows.append((["flags"], flags(taken_by_all)))
    rows.extend(
        ([f"flags{each.at}"], flags(each.flags)) for each in all_levels if each.at and each.flags
    )
    rows.extend(
        (names, array([(word, "") for word in words]))
        for names, words in _value_rows(all_levels, taken_by_all)
    )
    return _filled(_ZSH, tool, all_levels, taken_by_all, OFFERS=_cases(rows))


def _filled(
    template: str, tool: str, all_levels: list[Level], taken_by_all: list[Flag], **parts: str
) -> str:
    known = [each.at for each in all_levels if each.at]
    parts = {
        "TABLES": _TABLES,
        "WALK": _WALK,
        "KNOWN": _cases([(known, "return 0")]),
        "TAKEN": _cases([(_takers(all_levels, taken_by_all), "return 0")]),
        **parts,
        "FILES": FILES,
        "TOOL": tool,
    }
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


# fish.

_FISH = """\
# Completion of @TOOL@ in fish: source it, or save it where fish looks for completions.

function __@TOOL@_knows
    contains -- "$argv[1]" @KNOWN@
end

function __@TOOL@_takes
    contains -- "$argv[2]" @TAKEN@
    or contains -- "$argv[1] $argv[2]" @TAKEN@
end

function __@TOOL@_offers
    switch "$argv[1]"
@OFFERS@    end
end

function __@TOOL@
    set -l word (commandline -ct)
    set -l at ''
    set -l flag ''
    set -l begin ''
    for each in (commandline -opc)[2..-1]
        if test -n "$flag"
            set flag ''
        else if test "$each" = --
            break
        else if string match -q -- '-*' "$each"
            if not string match -q -- '*=*' "$each"; and __@TOOL@_takes "$at" "$each"
                set flag "$each"
            end
        else if __@TOOL@_knows "$at $each"
            set at "$at $each"
        end
    end
    if test -z "$flag"; and string match -q -- '--*=*' "$word"
        set flag (string split -m 1 = -- "$word")[1]
        set begin "$flag="
    end
    set -l offers
    if test -n "$flag"
        set offers (__@TOOL@_offers "$flag") (__@TOOL@_offers "$at $flag")
    else if string match -q -- '-*' "$word"
        set offers (__@TOOL@_offers flags)
        test -n "$at"; and set -a offers (__@TOOL@_offers "flags$at")
    else
        set offers (__@TOOL@_offers "after$at")
    end
    if contains -- '@FILES@' $offers
        __fish_complete_path "$word"
    else if set -q offers[1]
        printf '%s\\n' $begin$offers
    end
end

complete -c @TOOL@ -e
complete -c @TOOL@ -f -a '(__@TOOL@)'
"""


def _fish(tool: str, all_levels: list[Level], taken_by_all: list[Flag]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def case(patterns: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
        items = " ".join(quoted(f"{name}\t{text}" if text else name) for name, text in pairs)
        return (
            f"        case {' '.join(map(quoted, patterns))}\n            printf '%s\\n' {items}\n"
        )

    def flags(found: Sequence[Flag]) -> list[tuple[str, str]]:
        return [(name, flag.text) for flag in found for name in _names(flag)]

    offers = [case([f"after{each.at}"], each.following) for each in all_levels if each.following]
    offers.append(case(["flags"], flags(taken_by_all)))
    offers.extend(
        case([f"flags{each.at}"], flags(each.flags))
        for each in all_levels
        if each.at and each.flags
    )
    offers.extend(
        case(names, [(word, "") for word in words])
        for names, words in _value_rows(all_levels, taken_by_all)
    )
    parts = {
        "KNOWN": " ".join(quoted(each.at) for each in all_levels if each.at),
        "TAKEN": " ".join(map(quoted, _takers(all_levels, taken_by_all))),
        "OFFERS": "".join(offers),
        "FILES": FILES,
        "TOOL": tool,
    }
    text = _FISH
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


# PowerShell.

_POWERSHELL = """\
# Completion of @TOOL@ in PowerShell: run it from your profile.

Register-ArgumentCompleter -Native -CommandName '@TOOL@' -ScriptBlock {
    param($word, $ast, $position)
    $offers = @{
@OFFERS@    }
    $known = @(@KNOWN@)
    $takes = @(@TAKEN@)
    $at = ''
    $flag = ''
    $before = $ast.CommandElements | Select-Object -Skip 1 |
        Where-Object { $_.Extent.EndOffset -lt $position } | ForEach-Object { $_.ToString() }
    foreach ($each in $before) {
        if ($flag) { $flag = '' }
        elseif ($each -eq '--') { break }
        elseif ($each.StartsWith('-')) {
            if (-not $each.Contains('=') -and ($takes -ccontains $each -or
                    $takes -ccontains "$at $each")) { $flag = $each }
        }
        elseif ($known -ccontains "$at $each") { $at = "$at $each" }
    }
    $begin = ''
    if (-not $flag -and $word -like '--*=*') {
        $flag, $null = $word.Split('=', 2)
        $begin = "$flag="
    }
    if ($flag) { $found = @($offers[$flag]) + @($offers["$at $flag"]) }
    elseif ($word.StartsWith('-')) { $found = @($offers['flags']) + @($offers["flags$at"]) }
    else { $found = @($offers["after$at"]) }
    # Nothing offered leaves files to the shell.
    $found | Where-Object { $_ -and $_ -ne '@FILES@' -and "$begin$_".StartsWith($word) } |
        ForEach-Object {
            [System.Management.Automation.CompletionResult]::new(
                "$begin$_", $_, 'ParameterValue', $_)
        }
}
"""


def _powershell(tool: str, all_levels: list[Level], taken_by_all: list[Flag]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def array(words: Sequence[str]) -> str:
        return ", ".join(map(quoted, words))

    rows = [(f"after{each.at}", [name for name, _ in each.following]) for each in all_levels]
    rows.append(("flags", [name for flag in taken_by_all for name in _names(flag)]))
    rows.extend(
        (f"flags{each.at}", [name for flag in each.flags for name in _names(flag)])
        for each in all_levels
        if each.at
    )
    rows.extend(
        (name, list(words))
        for names, words in _value_rows(all_levels, taken_by_all)
        for name in names
    )
    parts = {
        "OFFERS": "".join(
            f"        {quoted(name)} = @({array(words)})\n" for name, words in rows if words
        ),
        "KNOWN": array([each.at for each in all_levels if each.at]),
        "TAKEN": array(_takers(all_levels, taken_by_all)),
        "FILES": FILES,
        "TOOL": tool,
    }
    text = _POWERSHELL
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


_SCRIPTS: dict[str, Callable[[str, list[Level], list[Flag]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
    "powershell": _powershell,
}
