"""Names and addresses of machines, by their number: `m7` at `http://m7:2380`."""

from kvorum.state.membership.documents import MemberDocument


def url_of(number: int) -> str:
    """Return the URL at which peers reach a machine."""
    return f"http://m{number}:2380"


def number_of(url: str) -> int:
    """Return the number of the machine at an address."""
    return int(url.removeprefix("http://m").removesuffix(":2380"))


def name_of(member: MemberDocument) -> str:
    """Return the name of a member's machine, by the member's first peer URL."""
    return f"m{number_of(member.peer_urls[0])}"
