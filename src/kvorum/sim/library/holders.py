"""Library users that hold locks and keep leases alive, and claim what the library reports."""

from random import Random

from kvorum.client.aio.leases import AsyncLease
from kvorum.client.aio.recipes.locks import AsyncLock
from kvorum.client.aio.recipes.sessions import AsyncSession
from kvorum.client.errors import ClosedError, KvorumError
from kvorum.client.lease_keeper import KeptLease
from kvorum.sim.lease_checks import GUARANTEE as LEASES
from kvorum.sim.library.checks import Claim
from kvorum.sim.library.shell import Shell, SimulatedClient
from kvorum.sim.library.tasks import Task
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import LOCK_NAME, Workload
from kvorum.sim.world import World

CHECK_SECONDS = 0.2
KEPT_PREFIX = b"kept/"
_TIMEOUTS = (0.5, 3.0, None)
"""Timeouts for acquiring a lock."""
_HELD_SECONDS = (1.0, 8.0)
"""Average times for which a user holds a lock or lease."""
_SILENT_CHANCE = 0.4
_CANCEL_CHANCE = 0.2


class Holder:
    """One user that repeatedly acquires a lock, or keeps a key with a lease."""

    __slots__ = (
        "_client",
        "_lease_seconds",
        "_random",
        "_wants_lock",
        "_world",
        "claims",
        "is_stopped",
        "shell",
    )

    def __init__(self, world: World, shell: Shell, workload: Workload, number: int) -> None:
        self._world = world
        self.shell = shell
        self._client = SimulatedClient(shell)
        self._random: Random = world.stream(f"holder {number}")
        self._wants_lock = self._random.random() < 0.6
        low, high = workload.lease_seconds
        # Leases with longer times would not end within a run.
        self._lease_seconds = (low, min(high, low + 2))
        self.claims: list[Claim] = []
        self.is_stopped = False

    @property
    def _name(self) -> str:
        return self.shell.process.name

    async def run(self) -> None:
        """Hold a lock or a lease, again and again."""
        random = self._random
        await self.shell.sleep(random.uniform(0.0, 1.0))
        while not self.is_stopped:
            try:
                if self._wants_lock:
                    await self._lock()
                else:
                    await self._keep()
            except ClosedError:
                if self.is_stopped:
                    return
            except KvorumError as error:
                self._line(f"has to begin anew: {error}")
            await self.shell.sleep(random.uniform(0.0, 0.3))

    def stop(self) -> None:
        """Stop the user and end its process, so that its leases expire."""
        self.is_stopped = True
        self.shell.end()

    # Locks.

    async def _lock(self) -> None:
        random, client = self._random, self._client
        ttl = random.randint(*self._lease_seconds)
        shared = await client.session(ttl) if random.random() < 0.5 else None
        try:
            for _ in range(random.randint(1, 3) if shared is not None else 1):
                await self._hold(client.lock(LOCK_NAME, ttl=ttl, session=shared), shared)
        finally:
            if shared is not None:
                await shared.close()

    async def _hold(self, lock: AsyncLock, shared: AsyncSession | None) -> None:
        random, world = self._random, self._world
        await self._acquire(lock)
        session = lock._session
        assert session is not None and self.shell.last is not None
        self._line(f"holds the lock as {lock.fencing}")
        claim = Claim(
            LOCK_NAME, self._name, lock.key, lock.fencing, self.shell.last, world.now, world.now
        )
        self.claims.append(claim)
        ends_at = self._ends_at(session.ttl)

        def look() -> bool:
            """Return whether the lock is held; if so, extend the claim to its lease's end."""
            is_held = lock.is_held
            if is_held:
                until = self.shell.process.world_moment(session._kept.lives_until)
                claim.until = max(claim.until, world.now, until)
            return is_held

        self.shell.process.on_resume = look
        while look() and world.now < ends_at:
            await self.shell.sleep(random.uniform(0.0, CHECK_SECONDS))
            self._check_lost(session._kept, session.id)
        if shared is None and lock.is_held and random.random() < 0.2:
            # The lock stays until its lease expires, and the claim covers that time.
            look()
            session.orphan()
            return
        self.shell.process.on_resume = None
        self._line("gives the lock back")
        claim.until = min(claim.until, world.now)
        await lock.release()

    async def _acquire(self, lock: AsyncLock) -> None:
        """Acquire the lock; some attempts are cancelled, as tasks can be."""
        random = self._random
        timeout = random.choice(_TIMEOUTS)
        if random.random() >= _CANCEL_CHANCE:
            await lock.acquire(timeout)
            return
        task = Task(self._world, self.shell.process, _swallowing(lock, timeout))
        self._world.after(random.expovariate(2.0), task.cancel)
        while not task.is_done:
            await self.shell.sleep(0.05)
        if not lock.is_held:
            raise ClosedError("the lock was not waited for any longer")

    # Leases.

    async def _keep(self) -> None:
        """Keep a key with a lease for a while."""
        random, world, client = self._random, self._world, self._client
        lease = await client.lease(random.randint(*self._lease_seconds))
        key = KEPT_PREFIX + b"%x" % lease.id
        if random.random() < 0.8:
            lease.keep_alive()
        put = await client.put(key, self._name, lease=lease.id)
        record = self.shell.last
        assert record is not None
        until = self._lives_until(lease)
        claim = Claim(b"", self._name, key, put.revision, record, world.now, until)
        self.claims.append(claim)
        ends_at = self._ends_at(lease.ttl)

        def look() -> bool:
            """Return whether the lease lives; if so, extend the claim on its key to its end."""
            until = self._lives_until(lease)
            lives = lease.lost is None and world.now < until
            if lives:
                claim.until = max(claim.until, until)
            return lives

        self.shell.process.on_resume = look
        while look() and world.now < ends_at:
            await self.shell.sleep(random.uniform(0.0, CHECK_SECONDS))
            if lease._kept is not None:
                self._check_lost(lease._kept, lease.id)
        self.shell.process.on_resume = None
        if random.random() < 0.5:
            lease.release()
        else:
            claim.until = min(claim.until, world.now)
            await lease.revoke()

    def _lives_until(self, lease: AsyncLease) -> float:
        """Return the world's time at which the client considers a lease expired."""
        kept = lease._kept
        moment = lease.asked_at + lease.ttl if kept is None else kept.lives_until
        return self.shell.process.world_moment(moment)

    def _ends_at(self, ttl: int) -> float:
        """Return when to release a lock or lease that lives `ttl` seconds after a renewal.

        With `_SILENT_CHANCE` the process falls silent meanwhile, often for longer than `ttl`.
        """
        random, world = self._random, self._world
        if random.random() >= _SILENT_CHANCE:
            return world.now + random.expovariate(1.0) * random.choice(_HELD_SECONDS)
        begins = random.uniform(0.0, ttl / 3)
        deaf, cut = ttl * random.uniform(0.3, 1.0), ttl * random.uniform(0.3, 1.3)
        world.after(begins, self.shell.process.fall_silent, deaf, cut)
        return world.now + begins + deaf + cut

    def _check_lost(self, kept: KeptLease, lease: int) -> None:
        """Require that the library reports no lease as expired before its promised end."""
        if kept.error is not None and "has ended" in str(kept.error):
            lost_at = self._world.now
            if lost_at < self.shell.process.world_moment(kept.lives_until):
                raise Violation(
                    LEASES,
                    f"{lease:x} was to live until {kept.lives_until:.3f}, and {self._name} knows "
                    f"at {lost_at:.3f}: {kept.error}",
                )

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self._name, what)


async def _swallowing(lock: AsyncLock, timeout: float | None) -> None:
    try:
        await lock.acquire(timeout)
    except KvorumError:
        return
