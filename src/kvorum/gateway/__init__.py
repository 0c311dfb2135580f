"""Plain HTTP on the client and metrics ports: versions, health, metrics.

`http` reads requests and answers them; `health` has the checks. Other endpoints are added by their
owners, so that this room knows neither flags nor clocks.
"""
