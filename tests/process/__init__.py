"""Tests of the process: start-up, the loop, jobs, faults, the end."""
