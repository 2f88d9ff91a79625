"""Real engines on an arbitrary network, against a dumb model of total order: a plain list.

Hypothesis decides what is delivered, dropped, doubled and delayed, which timer fires, who crashes
in the middle of what and what is left of it.  Whatever it does, the deliveries of all sites must
be those of one list: agreement, at most once, nothing invented, in order per source.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from roundelay.core.errors import QueueFull
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig
from roundelay.core.token.pdu import Ack, NewTl
from tests.core.ring import MS, Ring

PICK = st.integers(0, 10_000)
"""Taken modulo however many there are to pick from."""


class Model:
    """The agreed order, as far as anybody has seen it."""

    def __init__(self) -> None:
        self.order: list[tuple[int, bytes]] = []

    def deliver(self, seq: int, source: int, message: bytes) -> None:
        if seq == len(self.order):
            assert (source, message) not in self.order, "delivered twice"
            self.order.append((source, message))
        else:
            assert seq < len(self.order), f"nobody delivered what precedes position {seq}"
            assert self.order[seq] == (source, message), f"two orders at position {seq}"


class Machine(RuleBasedStateMachine):
    """One group of three to five sites."""

    ring: Ring

    @initialize(
        sites=st.sampled_from([3, 3, 4, 5]),
        level=st.integers(0, 2),
        rates=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]),
        history=st.sampled_from([0, 0, 2, 64]),
        window=st.sampled_from([2, 64]),
        batch=st.sampled_from([1, 32]),
        delay=st.sampled_from([0, MS]),
        bundle=st.booleans(),
        cold=st.booleans(),
        number=st.integers(0, 1000),
    )
    def begin(
        self, sites: int, level: int, rates: tuple[int, int], history: int, window: int,
        batch: int, delay: int, bundle: bool, cold: bool, number: int,
    ) -> None:  # fmt: skip
        config = TokenConfig(
            resilience=min(level, (sites + 1) // 2 - 1),
            kw=rates[0], kr=rates[1], history=history, window=window, recover_batch=batch,
            request_delay_ns=delay, bundle=bundle, boot=COLD if cold else PREFORMED,
            attempts=1, attempts_hard=4, qb_limit=3, own_limit=8, request_burst=4,
        )  # fmt: skip
        self.ring = Ring(sites, config, seed=number)
        self.model = Model()
        self.seen = dict.fromkeys(self.ring.group, 0)  # deliveries already compared
        self.expects = dict.fromkeys(self.ring.group, 0)  # next position at each site
        self.gaps = dict.fromkeys(self.ring.group, 0)  # gap notices already heard
        self.acks: dict[Any, Ack] = {}
        self.lists: dict[Any, tuple[int, ...]] = {}
        self.looked = 0
        self.disks_lost = 0
        self.quiet: set[int] = set(self.ring.group)  # sites that never crashed

    # -- what can happen -------------------------------------------------------------------

    def one(self, pick: int, among: Any) -> int:
        choices: list[int] = sorted(among)
        return choices[pick % len(choices)]

    @precondition(lambda self: self.ring.sites)
    @rule(pick=PICK)
    def submit(self, pick: int) -> None:
        site = self.one(pick, self.ring.sites)
        text = f"{site}#{len(self.ring.submitted[site])}"
        with suppress(QueueFull):
            self.ring.submit(site, text)
        self.look()

    @precondition(lambda self: self.ring.flights)
    @rule(pick=PICK)
    def deliver_any(self, pick: int) -> None:
        self.ring.deliver(pick % len(self.ring.flights))
        self.look()

    @precondition(lambda self: self.ring.flights)
    @rule(many=st.integers(1, 40))
    def deliver_in_order(self, many: int) -> None:
        for _ in range(many):
            if not self.ring.flights:
                break
            self.ring.deliver()
        self.look()

    @precondition(lambda self: self.ring.flights)
    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        del self.ring.flights[pick % len(self.ring.flights)]

    @precondition(lambda self: self.ring.flights)
    @rule(pick=PICK)
    def double(self, pick: int) -> None:
        if len(self.ring.flights) < 300:
            self.ring.flights.append(self.ring.flights[pick % len(self.ring.flights)])

    @precondition(lambda self: self.ring.sites)
    @rule(pick=PICK)
    def fire(self, pick: int) -> None:
        self.ring.fire(self.one(pick, self.ring.sites))
        self.look()

    @precondition(lambda self: self.ring.sites)
    @rule(tenths=st.integers(1, 60))
    def let_time_pass(self, tenths: int) -> None:
        self.ring.run(tenths * 10 * MS)
        self.look()

    @precondition(lambda self: self.ring.sites)
    @rule(pick=PICK, keeps=st.sampled_from(["disk", "disk", "memory"]))
    def crash(self, pick: int, keeps: str) -> None:
        site = self.one(pick, self.ring.sites)
        if keeps != "memory":
            self.quiet.discard(site)
        self.ring.crash(site, keeps=keeps)

    @precondition(lambda self: self.ring.sites)
    @rule(pick=PICK, done=st.integers(0, 5))
    def crash_amid_the_next_batch(self, pick: int, done: int) -> None:
        site = self.one(pick, self.ring.sites)
        self.quiet.discard(site)
        self.ring.doomed[site] = done

    @precondition(lambda self: self.ring.sites and not self.disks_lost)
    @rule(pick=PICK)
    def lose_a_disk(self, pick: int) -> None:
        site = self.one(pick, self.ring.sites)
        self.quiet.discard(site)
        self.disks_lost += 1
        self.ring.crash(site, keeps="nothing")

    @precondition(lambda self: len(self.ring.sites) < len(self.ring.group))
    @rule(pick=PICK)
    def restart(self, pick: int) -> None:
        site = self.one(pick, set(self.ring.group) - self.ring.sites.keys())
        if site in self.ring.wiped:
            self.expects[site] = 0
        elif site not in self.ring.kept:
            # The node hands over what the disk has; the engine goes on behind it.
            self.hand_over(site)
        self.ring.restart(site)
        self.look()

    def hand_over(self, site: int) -> None:
        """What a crash kept from the application is still on the disk."""
        disk = self.ring.disks[site]
        for ts in sorted(disk.entries):
            line = disk.entries[ts]
            if ts < disk.cnts and line.seq >= self.expects[site]:
                for seq, message in enumerate(line.bundle, line.seq):
                    self.model.deliver(seq, line.ack.s, message)
        self.expects[site] = disk.seq

    @precondition(lambda self: self.ring.sites)
    @rule(pick=PICK)
    def reform(self, pick: int) -> None:
        site = self.one(pick, self.ring.sites)
        self.ring[site].reform(self.ring.now)
        self.ring.collect(site)
        self.look()

    @rule(cut=st.integers(1, 30))
    def split(self, cut: int) -> None:
        group = self.ring.group
        one = tuple(site for site in group if cut >> site & 1)
        self.ring.heal()
        self.ring.cut(one, tuple(site for site in group if site not in one))

    @rule()
    def heal(self) -> None:
        self.ring.heal()

    # -- what must hold --------------------------------------------------------------------

    def look(self) -> None:
        """Compare what was delivered and sent since the last look."""
        ring = self.ring
        for site in ring.group:
            gaps = ring.told(site, "gap_unavailable")
            for lo, hi in gaps[self.gaps[site] :]:
                assert lo < hi
                assert lo <= self.expects[site] <= hi
                self.expects[site] = hi
            self.gaps[site] = len(gaps)
        # In the order of positions, since sites deliver the same ones at different times.
        fresh = []
        for site in ring.group:
            for delivery in ring.delivered[site][self.seen[site] :]:
                assert delivery.seq >= self.expects[site], f"{site} repeats {delivery.seq}"
                assert delivery.seq == self.expects[site], f"{site} leaves something out"
                self.expects[site] = delivery.seq + len(delivery.bundle)
                for seq, message in enumerate(delivery.bundle, delivery.seq):
                    fresh.append((seq, delivery.source, message))
            self.seen[site] = len(ring.delivered[site])
        for line in sorted(fresh):
            self.model.deliver(*line)
        for sent in ring.sent[self.looked :]:
            pdu = sent.pdu
            if isinstance(pdu, Ack):
                assert self.acks.setdefault((pdu.tl, pdu.ts), pdu) == pdu, "two issuers"
            elif isinstance(pdu, NewTl):
                assert self.lists.setdefault(pdu.v, pdu.members) == pdu.members, "two lists"
        self.looked = len(ring.sent)

    @invariant()
    def nothing_invented_and_in_order_per_source(self) -> None:
        if not hasattr(self, "ring"):
            return
        numbers: dict[int, int] = defaultdict(lambda: -1)
        for source, message in self.model.order:
            number = self.ring.submitted[source].index(message.decode())
            assert number > numbers[source]
            numbers[source] = number

    @invariant()
    def everything_is_bounded(self) -> None:
        if hasattr(self, "ring"):
            for engine in self.ring.sites.values():
                caps = engine.caps()
                assert all(held <= caps[name] for name, held in engine.usage().items())

    def teardown(self) -> None:
        """Everybody back, the network whole: all that is pending must get through."""
        if not hasattr(self, "ring"):
            return
        ring = self.ring
        ring.heal()
        ring.doomed.clear()
        while len(ring.sites) < len(ring.group):
            self.restart(0)
        if self.disks_lost:
            ring.run(5_000 * MS)  # it may be blocked for good; but not wrong
            self.look()
            return
        wanted = {text for site in self.quiet for text in ring.submitted[site]}
        for _ in range(200):
            ring.run(500 * MS)
            self.look()
            delivered = {message.decode() for _, message in self.model.order}
            if wanted <= delivered and len(set(self.expects.values())) == 1:
                break
        assert wanted <= delivered, f"never delivered: {sorted(wanted - delivered)}"
        assert len(set(self.expects.values())) == 1, "some site stays behind"
        self.nothing_invented_and_in_order_per_source()


TestMachine = seed(1984)(Machine).TestCase
TestMachine.settings = settings(
    max_examples=250,
    stateful_step_count=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


# Hypothesis goes wide and finds short examples; long walks with a sense of proportion go deep.

WEIGHTS = {
    "submit": 30, "deliver_any": 60, "deliver_in_order": 60, "drop": 20, "double": 20, "fire": 30,
    "let_time_pass": 25, "crash": 4, "crash_amid_the_next_batch": 5, "lose_a_disk": 0.3,
    "restart": 14, "reform": 3, "split": 4, "heal": 6,
}  # fmt: skip


def walk(number: int, steps: int) -> Machine:
    """A random walk through the machine's rules."""
    rng = Random(f"walk/{number}")
    machine = Machine.__new__(Machine)  # without Hypothesis: nobody keeps a record
    machine.begin(
        sites=rng.choice((3, 3, 4, 5)), level=rng.randint(0, 2),
        rates=rng.choice(((1, 1), (1, 1), (2, 1), (1, 2))), history=rng.choice((0, 0, 2, 64)),
        window=rng.choice((2, 64)), batch=rng.choice((1, 32)), delay=rng.choice((0, MS)),
        bundle=rng.random() < 0.5, cold=rng.random() < 0.3, number=number,
    )  # fmt: skip
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for name in rng.choices(names, weights, k=steps):
        ring = machine.ring
        if name in ("deliver_any", "deliver_in_order", "drop", "double") and not ring.flights:
            name = "let_time_pass"
        if name not in ("restart", "split", "heal") and not ring.sites:
            name = "restart"
        if name == "restart" and len(ring.sites) == len(ring.group):
            continue
        if name == "lose_a_disk" and machine.disks_lost:
            continue
        pick = rng.randrange(10_000)
        match name:
            case "deliver_in_order":
                machine.deliver_in_order(rng.randint(1, 40))
            case "let_time_pass":
                machine.let_time_pass(rng.choice((1, 2, 5, 10, 60)))
            case "crash":
                machine.crash(pick, rng.choice(("disk", "disk", "memory")))
            case "crash_amid_the_next_batch":
                machine.crash_amid_the_next_batch(pick, rng.randint(0, 5))
            case "split":
                machine.split(rng.randint(1, 30))
            case "heal":
                machine.heal()
            case _:
                getattr(machine, name)(pick)
        machine.everything_is_bounded()
    machine.nothing_invented_and_in_order_per_source()
    machine.teardown()
    return machine


@pytest.mark.parametrize("numbers", [range(k, k + 50) for k in range(0, 250, 50)], ids=str)
def test_long_random_walks_end_in_one_order_as_well(numbers: range) -> None:
    """A failure names its walk: `walk(number, 400)` runs it again."""
    lists = messages = 0
    for number in numbers:
        try:
            machine = walk(number, 400)
        except Exception as error:
            error.add_note(f"walk({number}, 400)")
            raise
        lists += len(machine.lists)
        messages += len(machine.model.order)
    assert messages > 15 * len(numbers)
    assert lists > 5 * len(numbers)
