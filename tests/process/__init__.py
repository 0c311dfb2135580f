"""Tests of the process: flags, logs, metrics, start-up, the loop."""
