"""The sample configuration file: every key with its meaning and its default.

`kvorum config sample` prints the sample, and `docs/kvorum.conf.yml` holds its output; a test fails
if the two differ.
"""

from textwrap import wrap

from kvorum.api.durations import duration
from kvorum.process.settings.file import KEYS
from kvorum.process.settings.file_keys import SECTIONS, type_of
from kvorum.process.settings.rows import FlagRow

WIDTH = 96
HEAD = """\
# A configuration file for Kvorum or etcd 3.7: every key with its meaning and its default.
#
#   kvorum config check FILE      lists all mistakes in the file
#   kvorum --config-file FILE     starts a server; other flags and variables have no effect
#
# Times are in nanoseconds, unless a key's comment says otherwise. Commas separate URLs. Text that
# looks like a number or a boolean must be in quotes.
"""


def sample() -> str:
    """Return the text of the sample."""
    parts = [HEAD]
    for section in dict.fromkeys(flag.section for flag in KEYS.values()):
        keys = [place for place, flag in KEYS.items() if flag.section == section]
        if top := [place for place in keys if "." not in place]:
            parts.append(f"\n# {section}\n" + "".join(_entry(place, KEYS[place]) for place in top))
    parts += [f"\n{name}:\n{_members(name)}" for name in SECTIONS if "." not in name]
    return "".join(parts)


def _members(section: str) -> str:
    """Return the keys of a section, followed by its subsections."""
    text = ""
    for place, flag in KEYS.items():
        if place.rpartition(".")[0] == section:
            text += _entry(place, flag)
    for name in SECTIONS:
        above, _, own = name.rpartition(".")
        if above == section:
            text += f"{_indent(name)}{own}:\n" + _members(name)
    return text


def _entry(place: str, flag: FlagRow) -> str:
    blank = _indent(place)
    comment = "\n".join(wrap(flag.help, WIDTH, initial_indent="# ", subsequent_indent="# "))
    lines = [blank + line for line in comment.splitlines()]
    lines.append(f"{blank}{place.rpartition('.')[2]}: {_default(flag)}".rstrip())
    return "\n".join(lines) + "\n"


def _indent(place: str) -> str:
    return "  " * place.count(".")


def _default(flag: FlagRow) -> str:
    kind = type_of(flag)
    if kind == "time.Duration":
        return str(duration(flag.default))
    if kind == "[]string":
        return f"[{flag.default}]"
    if kind == "string" or kind.endswith("Enum"):
        return "'" + flag.default.replace("'", "''") + "'"
    return flag.default
