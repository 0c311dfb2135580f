"""The store against a list of all events, over crashes between any two steps."""

from hypothesis import settings

from tests.mvcc.machine import StoreMachine

TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
