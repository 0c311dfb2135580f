"""Key ranges in the form that the whole API uses."""


def prefix_end(prefix: bytes) -> bytes:
    r"""Return the first key after all that begin with a prefix; one zero byte if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b"\0"
