"""Programs of users on virtual time: asyncio, clocks and chance, and processes that are killed."""
