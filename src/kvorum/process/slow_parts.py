"""Warn, when a server starts, of the parts that run as Python although a faster form exists."""

from kvorum.server.telemetry.logs import Logger

EDGE_WARNING = (
    "serving with the pure Python edge, which serves about 40 times fewer requests than the native "
    "one"
)
EDGE_REMEDY = (
    "install a wheel for this platform, or install cargo and then Kvorum again; KVORUM_EDGE must "
    "not be 'python'"
)
CORE_WARNING = (
    "running the uncompiled core, in which a put takes about twice the time that it takes in the "
    "compiled one"
)
CORE_REMEDY = (
    "install a wheel for this platform, or install gcc and then Kvorum again, or run 'make setup' "
    "in a checkout; KVORUM_COMPILED must not be '0'"
)


def warn_of_slow_parts(logger: Logger, edge: str, core: str) -> None:
    """Log a line for the edge and a line for the core, unless it is native or compiled."""
    if edge != "native":
        logger.warning(EDGE_WARNING, edge=edge, remedy=EDGE_REMEDY)
    if core != "compiled":
        logger.warning(CORE_WARNING, core=core, remedy=CORE_REMEDY)
