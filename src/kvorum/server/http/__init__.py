"""Plain HTTP on the client and metrics ports: the JSON gateway, versions, health, metrics.

`http` dispatches and answers requests; `health` has the checks; `calls` has the JSON gateway. Other
modules add their own endpoints, so that this package depends on neither flags nor clocks.
"""
