"""A worker that writes invoices while it leads; the numbers have no gaps, and none is used twice.

Any number of workers run at once. Winning the election is not enough to write safely: a worker may
pause between its check that it leads and its write, for longer than its session lasts, while
another worker becomes leader. So each write is a transaction on the condition that its worker
still leads.
"""

import asyncio

from kvorum.client import AsyncClient, KvorumError
from kvorum.client.aio.recipes.elections import AsyncElection
from kvorum.client.transactions import put

ELECTION = "invoices/leader"
NEXT = "invoices/next"
WRITTEN = "invoices/written/"
SESSION_SECONDS = 5
AGAIN_SECONDS = 0.5


class Worker:
    """Writes invoices while it leads."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name

    async def run(self) -> None:
        """Campaign and lead, again and again."""
        while True:
            election = self.client.election(ELECTION, ttl=SESSION_SECONDS)
            try:
                try:
                    await election.campaign(self.name)
                    while await self.lead(election):
                        pass
                finally:
                    await election.resign()
            except KvorumError:
                # The session is lost, or the outcome of a write is unknown: campaign again.
                await asyncio.sleep(AGAIN_SECONDS)

    async def lead(self, election: AsyncElection) -> bool:
        """Write one invoice; return whether this worker still leads."""
        number = await self.next_number()
        invoice = await self.made(number)
        return await self.write(election, number, invoice)

    async def next_number(self) -> int:
        """Return the next invoice's number."""
        found = await self.client.get(NEXT)
        return 1 if found is None else int(found.value)

    async def made(self, number: int) -> str:
        """Make an invoice, which takes a while."""
        await asyncio.sleep(1.0)
        return f"invoice {number} by {self.name}"

    async def write(self, election: AsyncElection, number: int, invoice: str) -> bool:
        """Write an invoice if this worker leads; return whether it leads."""
        steps = (put(f"{WRITTEN}{number:06}", invoice), put(NEXT, str(number + 1)))
        done = await self.client.txn().when(election.condition).then(*steps).commit()
        return done.succeeded
