"""The parts of recipes that both clients share: none of them waits."""
