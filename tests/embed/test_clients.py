"""What clients are tried on over the network holds without a socket, too: the same tests.

Their fixtures of the same names are in `conftest`: a member of this process, and its clients.
"""

from tests.client import (
    test_administration,
    test_conditional,
    test_endpoints,
    test_kubernetes,
    test_leasing,
    test_mirror,
    test_namespace,
    test_streams,
)
from tests.client.recipes import (
    test_barriers,
    test_caches,
    test_elections,
    test_locks,
    test_namespaces,
    test_queues,
    test_registry,
    test_stm,
)

MODULES = (
    test_administration,
    test_barriers,
    test_caches,
    test_conditional,
    test_elections,
    test_kubernetes,
    test_leasing,
    test_locks,
    test_mirror,
    test_namespace,
    test_namespaces,
    test_queues,
    test_registry,
    test_stm,
    test_streams,
)
"""Their tests that ask for a client are collected here."""

CLIENTS = {"run", "client", "connect"}
SERVERS = {"server", "lone_server", "client"}

for _module in MODULES:
    for _name, _function in vars(_module).items():
        if _name.startswith("test_") and callable(_function):
            _inner = getattr(_function, "hypothesis", None)
            _code = (_inner.inner_test if _inner else _function).__code__
            _arguments = set(_code.co_varnames[: _code.co_argcount])
            if CLIENTS & _arguments and SERVERS & _arguments:
                globals()[_name] = _function

test_no_endpoint_is_a_mistake = test_endpoints.test_no_endpoint_is_a_mistake
