"""Observability for operators: logs, metrics, traces and their counters."""
