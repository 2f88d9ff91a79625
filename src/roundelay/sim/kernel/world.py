"""A world: the kernel, and everything that can happen to its sites.

Crashes leave memory, disk or nothing; a pause keeps what arrives for later; clocks run fast, slow
and jump; applications read slowly.  A crash can hit in the middle of a batch of effects, between
any two of its persists and sends: what was persisted stays, what was not sent never is, nothing is
delivered.  After such a crash the world, acting as the node, hands over what the disk has and the
application has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roundelay.core.engine import Delivery, Effects
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.events import CRASH, DISK, FAULT, MEMORY, NOTHING_LEFT, PAUSE, RESTART, RESUME
from roundelay.core.notices import GapUnavailable
from roundelay.core.token.stable import undelivered
from roundelay.sim.kernel.disk import SimulatedDisk
from roundelay.sim.kernel.kernel import Kernel
from roundelay.sim.kernel.member import DOWN, PAUSED, UP, Consumer, SimulatedSite
from roundelay.sim.kernel.twins import Twins

DAY_NS = 86_400 * 10**9


class World(Kernel):
    """See `Kernel` for the parameters."""

    # -- crashes ---------------------------------------------------------------------------

    def crash(
        self, site: int, keeps: str = DISK, mid_batch: bool = False, steps: int | None = None
    ) -> None:
        """Stop `site`; nothing happens if it is down.

        `mid_batch`: not now but in the middle of its next batch of effects, after `steps` of its
        persists and sends (a random number unless given).
        """
        member = self.sites[site]
        if keeps not in (MEMORY, DISK, NOTHING_LEFT):
            raise ConfigError("keeps", keeps, f"{MEMORY}, {DISK} or {NOTHING_LEFT}")
        if keeps == DISK and member.disk is None:
            raise UsageError("a crash that keeps the disk needs make_stable: there is no disk")
        if mid_batch and keeps == MEMORY:
            raise UsageError("a crash in the middle of a batch keeps disk or nothing")
        if member.state == DOWN:
            return
        if mid_batch:
            member.amid = lambda out: self._die_amid(member, keeps, out, steps)
            return
        if member.engine is not None:
            member.kept = member.engine
        if keeps != MEMORY:
            member.kept = member.held_back = None
        member.engine = None
        member.amid = None
        member.state = DOWN
        member.keeps = keeps
        member.queue.clear()
        if member.consumer is not None and keeps != MEMORY:
            member.consumer = None  # its connection is gone, and the mailbox with it
        if keeps == NOTHING_LEFT:
            if member.disk is not None:
                member.disk.wipe()
            member.position = member.forgot = 0
        self.row(site, CRASH, keeps)
        self.tell("crashed", self.now, site, keeps)

    def _die_amid(self, member: SimulatedSite, keeps: str, out: Effects, steps: int | None) -> bool:
        """Only the first so many persists and sends happen."""
        most = len(out.persists) + len(out.sends)
        rng = self.stream(f"amid/{member.id}/{member.incarnation}")
        done = rng.randint(0, most) if steps is None else min(steps, most)
        if member.disk is not None:
            member.disk.write(out.persists[:done])
        for dst, pdu, line in out.sends[: max(0, done - len(out.persists))]:
            self.medium.send(member.id, dst, pdu, line)
        self.fault("crash:mid-batch")
        if done < len(out.persists):
            self.fault("disk:torn-tail")
        self.crash(member.id, keeps)
        return True

    def lose_unsynced(self, site: int) -> None:
        """Crash `site`; of its disk only what was synced is left."""
        member = self.sites[site]
        if member.state == DOWN or member.disk is None:
            return
        self.crash(site, DISK)
        if member.disk.lose_unsynced():
            member.forgot = member.position
            self.fault("disk:lost-unsynced")

    def fail_disk(self, site: int) -> None:
        """The next write fails half-way: the node stops the site rather than go on."""

        def fail(member: SimulatedSite, disk: SimulatedDisk, out: Effects) -> None:
            rng = self.stream(f"fail/{site}/{member.incarnation}")
            disk.write(out.persists[: rng.randrange(len(out.persists))])
            self.fault("disk:error")
            self.crash(site, DISK)

        self._at_next_write(site, fail)

    def slow_disk(self, site: int, lasts_ns: int) -> None:
        """The next write takes `lasts_ns`; what depends on it, and everything else, waits."""

        def wait(member: SimulatedSite, disk: SimulatedDisk, out: Effects) -> None:
            disk.write(out.persists)
            member.amid = None
            member.held_back = out
            self.fault("disk:slow")
            self.pause(site)
            self.after(lasts_ns, lambda: self.resume(site) if member.held_back is out else None)

        self._at_next_write(site, wait)

    def _at_next_write(
        self, site: int, event: Callable[[SimulatedSite, SimulatedDisk, Effects], None]
    ) -> None:
        """Let `event` happen in place of the next batch that has something to persist."""
        member = self.sites[site]

        def happen(out: Effects) -> bool:
            if out.persists and member.disk is not None:
                event(member, member.disk, out)
            return bool(out.persists)

        if member.disk is not None:
            member.amid = happen

    def restart(self, site: int) -> None:
        """Start `site` again with what its crash left; a crash still to come is called off."""
        member = self.sites[site]
        member.amid = None
        if member.state != DOWN:
            return
        keeps = member.keeps
        self.row(site, RESTART, keeps)
        self.tell("restarted", self.now, site, keeps)
        if keeps == MEMORY:
            self._finish_batch(member)
            self._wake_up(member)
        elif keeps == DISK:
            assert member.disk is not None
            stable = member.disk.stable
            missed, gap = undelivered(stable, member.position)
            if gap is not None:
                self.notify(member, gap)
            for delivery in missed:
                self.hand_over(member, delivery)
            self.start(member, stable, self.boot)
        else:
            self.start(member, None, "rejoin")

    def replace(self, site: int) -> None:
        """Stop `site` and start another process in its place, which has nothing of it.

        The first one wakes up as its twin (`wake_twin`), until `end_twin`."""
        member = self.sites[site]
        if member.state != UP or member.engine is None:
            return
        if self.twins is None:
            self.twins = Twins(self)
        self.twins.end(site)
        self.twins.stop(member)
        self.crash(site, NOTHING_LEFT)
        self.restart(site)

    def wake_twin(self, site: int) -> None:
        if self.twins is not None:
            self.twins.wake(site)

    def end_twin(self, site: int) -> None:
        if self.twins is not None:
            self.twins.end(site)

    def power_cut(self) -> None:
        """Every site stops at once; only the disks are left."""
        for site in self.group:
            self.crash(site, DISK)

    def restart_all(self) -> None:
        """Restart what is down, resume what is paused."""
        for member in self.sites:
            if member.state == PAUSED:
                self.resume(member.id)
            self.restart(member.id)

    # -- pauses ----------------------------------------------------------------------------

    def pause(self, site: int) -> None:
        """Freeze `site`: it neither receives nor fires timers until `resume`."""
        member = self.sites[site]
        if member.state != UP:
            return
        member.kept, member.engine = member.engine, None
        member.state = PAUSED
        self.row(site, PAUSE, None)

    def resume(self, site: int) -> None:
        """Go on: what the operating system kept arrives now, timers fire late."""
        member = self.sites[site]
        if member.state != PAUSED:
            return
        self.row(site, RESUME, None)
        self._finish_batch(member)
        waiting = list(member.queue)
        member.queue.clear()
        timers_first = self.stream(f"resume/{site}/{self.now}").random() < 0.5
        if timers_first:
            self._wake_up(member)
        else:
            member.engine, member.kept = member.kept, None
            member.state = UP
        for src, pdu, ref, line in waiting:
            self.arrive(src, pdu, (member,), ref, line)
        if not timers_first and member.state == UP:
            self._wake_up(member)

    def _finish_batch(self, member: SimulatedSite) -> None:
        """Carry out what a slow disk has held up."""
        rest, member.held_back = member.held_back, None
        if rest is not None:
            self.carry_on(member, rest)

    def _wake_up(self, member: SimulatedSite) -> None:
        """The engine goes on as it was; what is due by now fires at once."""
        if member.kept is not None:
            member.engine, member.kept = member.kept, None
        member.state = UP
        engine = member.engine
        assert engine is not None
        local = member.local(self.now)
        if engine.deadline <= local:
            self.events += 1
            engine.on_timer(local)
            self.settle(member, engine)
        if member.engine is engine:
            self.rearm(member)

    # -- clocks ----------------------------------------------------------------------------

    def set_clock_rate(self, site: int, rate: int) -> None:
        """The site's clock runs at `rate` thousandths of true time from now on."""
        if not 1 <= rate <= 100_000:
            raise ConfigError("rate", rate, "thousandths, from 1 to 100000")
        self._set_clock(site, "clock rate", rate=rate)

    def jump_clock(self, site: int, jump_ns: int = DAY_NS) -> None:
        """The site's clock jumps forward."""
        if jump_ns < 0:
            raise ConfigError("jump_ns", jump_ns, "0 or more: a monotonic clock never goes back")
        self._set_clock(site, "clock jump", jump_ns=jump_ns)

    def _set_clock(self, site: int, what: str, **change: int) -> None:
        member = self.sites[site]
        member.set_clock(self.now, **change)
        self.row(site, FAULT, what)
        self.rearm(member)

    # -- storms ----------------------------------------------------------------------------

    def storm(self, sites: Iterable[int] | None = None) -> None:
        """Sites (all of them) start a reformation at once: duelling originators."""
        for site in self.group if sites is None else sites:
            self.call(site, lambda engine, now: engine.reform(now))

    # -- slow readers ----------------------------------------------------------------------

    def slow_down(self, site: int, mailbox: int, drain_ns: int, reattach_ns: int) -> None:
        """A reader at `site` takes one delivery every `drain_ns` from a bounded mailbox.

        When it overflows the node detaches the reader; `reattach_ns` after it has emptied its
        mailbox it is attached again and told which positions it missed.  Nobody waits for it.
        """
        member = self.sites[site]
        if member.state == UP and member.consumer is None:
            member.consumer = Consumer(mailbox, drain_ns, reattach_ns, member.position)
            self.row(site, FAULT, "slow-consumer")

    def speed_up(self, site: int) -> None:
        """The reader takes what is left, hears of what it missed, and is fast from now on."""
        member = self.sites[site]
        consumer, member.consumer = member.consumer, None
        if consumer is not None:
            while consumer.mailbox:
                consumer.take()
            self._attach(member, consumer)

    def offer(self, site: SimulatedSite, consumer: Consumer, delivery: Delivery) -> None:
        if consumer.attached and len(consumer.mailbox) >= consumer.limit:
            consumer.attached = False
            self.fault("slow-consumer")
        if consumer.attached:
            consumer.mailbox.append(delivery)
            if not consumer.draining:
                consumer.draining = True
                self.after(consumer.drain_ns, lambda: self._drain(site, consumer))

    def _drain(self, site: SimulatedSite, consumer: Consumer) -> None:
        if site.consumer is not consumer:
            return
        consumer.take()
        consumer.draining = bool(consumer.mailbox)
        if consumer.draining:
            self.after(consumer.drain_ns, lambda: self._drain(site, consumer))
        elif not consumer.attached:
            self.after(consumer.reattach_ns, lambda: self._reattach(site, consumer))

    def _reattach(self, site: SimulatedSite, consumer: Consumer) -> None:
        if site.consumer is consumer:
            self._attach(site, consumer)

    def _attach(self, site: SimulatedSite, consumer: Consumer) -> None:
        consumer.attached = True
        if consumer.position < site.position:
            missed = (consumer.position, site.position)
            consumer.position = site.position
            self.notify(site, GapUnavailable(*missed))
