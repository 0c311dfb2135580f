"""Plain HTTP on the client and metrics ports: versions, health, metrics.

`http` reads requests and answers them; `health` has the checks; what an endpoint shows comes from
the caller, so that this room knows neither flags nor clocks.
"""
