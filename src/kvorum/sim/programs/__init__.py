"""User programs on virtual time: asyncio, clocks, randomness, and processes that get killed."""
