"""Tests of the plain HTTP endpoints."""
