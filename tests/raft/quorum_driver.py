"""Runs the scenarios about majorities: `committed` and `vote`."""

from collections.abc import Sequence

from kvorum.raft.entries import NO_LIMIT
from kvorum.raft.quorum import committed_index, joint_vote_result, vote_result
from tests.raft.datadriven import Case
from tests.raft.naive import naive_committed


def handle(case: Case) -> str:
    for name, _ in case.arguments:
        assert name in ("cfg", "cfgj", "idx", "votes"), f"unknown argument {name}"
    incoming = [int(text) for text in case.values("cfg") if text]
    outgoing = [int(text) for text in case.values("cfgj") if text not in ("", "zero")]
    joint = case.has("cfgj")
    voters = list(dict.fromkeys(incoming + outgoing))
    given = case.values("idx" if case.command == "committed" else "votes")
    if len(given) != len(voters):
        listed = " ".join(f"{voter}:{{}}" for voter in sorted(voters))
        shown = " ".join("0" if text == "_" else text for text in given)
        return f"error: mismatched input (explicit or _) for voters map[{listed}]: [{shown}]"
    known = {voter: text for voter, text in zip(voters, given, strict=True) if text != "_"}
    if case.command == "vote":
        return _vote(incoming, outgoing, {voter: text == "y" for voter, text in known.items()})
    assert case.command == "committed", f"unknown command {case.command}"
    indexes = {voter: int(text) for voter, text in known.items()}
    assert 0 not in indexes.values(), "an index of 0 is written _"
    return _committed(incoming, outgoing, indexes, joint)


def _vote(incoming: list[int], outgoing: list[int], votes: dict[int, bool]) -> str:
    first = vote_result(votes.get(voter) for voter in incoming)
    second = vote_result(votes.get(voter) for voter in outgoing)
    result = joint_vote_result(first, second)
    swapped = joint_vote_result(second, first)
    symmetry = "" if swapped is result else f"{swapped.value} <-- via symmetry\n"
    return f"{symmetry}{result.value}\n"


def _joint(first: Sequence[int], second: Sequence[int], indexes: dict[int, int]) -> int:
    return min(
        committed_index([indexes.get(voter, 0) for voter in first]),
        committed_index([indexes.get(voter, 0) for voter in second]),
    )


def _committed(
    incoming: list[int], outgoing: list[int], indexes: dict[int, int], joint: bool
) -> str:
    text = table(incoming + outgoing, indexes)
    result = _joint(incoming, outgoing, indexes)
    if joint:
        swapped = _joint(outgoing, incoming, indexes)
        if swapped != result:
            text += f"{_index_text(swapped)} <-- via symmetry\n"
    else:
        text += _disagreements(incoming, indexes, result)
    return f"{text}{_index_text(result)}\n"


def _disagreements(voters: list[int], indexes: dict[int, int], result: int) -> str:
    text = ""
    others = {
        "via alternative computation": naive_committed(voters, indexes),
        "via zero-joint quorum": _joint(voters, [], indexes),
        "via self-joint quorum": _joint(voters, voters, indexes),
    }
    for how, other in others.items():
        if other != result:
            text += f"{_index_text(other)} <-- {how}\n"
    for voter in sorted(indexes):
        if indexes[voter] < result:
            for lowered in (indexes[voter] - 1, 0):
                other = _joint(voters, [], {**indexes, voter: lowered})
                if other != result:
                    text += f"{_index_text(other)} <-- overlaying {voter}->{lowered}"
    return text


def _index_text(index: int) -> str:
    return "∞" if index == NO_LIMIT else str(index)


def table(voters: Sequence[int], indexes: dict[int, int]) -> str:
    """Draw how far each voter is, in relation to the others."""
    ids = sorted(set(voters))
    if not ids:
        return "<empty majority quorum>"
    width = len(ids)
    bars: dict[int, int] = {}
    previous, bar = -1, 0
    for rank, voter in enumerate(sorted(ids, key=lambda voter: (indexes.get(voter, 0), voter))):
        if indexes.get(voter, 0) > previous:
            bar = rank
        previous = indexes.get(voter, 0)
        bars[voter] = bar
    text = " " * width + "    idx\n"
    for voter in ids:
        if voter in indexes:
            drawn = "x" * bars[voter] + ">" + " " * (width - bars[voter])
        else:
            drawn = "?" + " " * width
        text += f"{drawn} {indexes.get(voter, 0):>5}    (id={voter:x})\n"
    return text
