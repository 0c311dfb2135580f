"""Tests of what the tests of others use."""
