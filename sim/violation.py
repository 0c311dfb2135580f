"""What a run ends with when a guarantee does not hold."""


class Violation(Exception):  # noqa: N818 (it is a finding, not an error of the simulator)
    """A guarantee, and how it was broken."""

    def __init__(self, guarantee: str, text: str) -> None:
        super().__init__(f"{guarantee}: {text}")
        self.guarantee = guarantee
        self.text = text
