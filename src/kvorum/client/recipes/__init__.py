"""What the recipes of both clients share: nothing here waits."""
