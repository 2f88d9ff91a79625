"""Where the papers go wrong when read literally: each fix, and what happens without it.

Every class below is a shipped engine with one fix taken back; those that the explorer catches, too,
stand in `sim/mutants/cluster.py`.  Each test runs one scenario twice:
with the fix all is well, without it the scenario ends in a deadlock, in a belief that is not so,
or in work done twice.  The numbers E nn are those of the list of errata that the engines' rules
refer to; docs/cluster.md tells what each is about.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.pdu import Dt, SpoDt, SpoNull, SpoRetx, SpoStat, ToDt
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.engine import NEVER
from roundelay.core.families import FAMILIES
from roundelay.core.limits import UNLIMITED
from roundelay.sim.mutants.registry import MUTANTS
from tests.core.cluster_net import MS, Net, Unsound, Watcher, watched

LONG = 700 * MS  # seven polls: what has not happened by then never will


def variant(name: str) -> Any:
    """The engine that a mutant breaks, broken, as a class beside it."""
    mutant = MUTANTS[name]
    methods: dict[str, Any] = {patch.name: patch.value for patch in mutant.patches}
    methods["__module__"] = "roundelay.sim.mutants.cluster"  # by which `Net` knows a broken engine
    return type(name, (FAMILIES[mutant.protocol].engine,), methods)


ClaimsItsOwn = variant("claims-its-own")
FlowControlForAll = variant("flow-control-for-all")
FreshVectors = variant("fresh-vectors")
NoSelfAcknowledgement = variant("no-self-acknowledgement")
TreqIsTheLast = variant("treq-is-the-last")


# -- E 19: is a PDU its sender's acknowledgement of itself? (TR-2) ---------------------------------


@pytest.mark.parametrize("sites", [3, 4, 6])
def test_e_19_without_self_acknowledgement_2n_pdus_deliver_nothing(sites: int) -> None:
    for kind, logs in ((PoSite, ["x"]), (NoSelfAcknowledgement, [])):
        net = Net(kind, sites)
        net.submit(0, "x")
        net.run(50 * MS)
        assert len(net.sent) == 2 * sites
        assert [net.log(site) for site in range(1, sites)] == [logs] * (sites - 1)
        net.run(LONG)
        assert net.log(1) == logs  # and polls do not help


# -- E 22: does flow control hold back acknowledgements? (TR-10) -----------------------------------


def test_e_22_flow_control_for_acknowledgements_lets_two_senders_block_each_other() -> None:
    for kind, logs in ((PoSite, ["x", "y"]), (FlowControlForAll, [])):
        net = Net(kind, 2, window=1)
        net.submit(0, "x")
        net.submit(1, "y")
        net.run(LONG)
        assert sorted(net.log(0)) == sorted(net.log(1)) == logs
        assert all(not site.queue for site in net)


def test_e_22_alone_a_literal_sender_is_fine() -> None:
    """The deadlock needs two: otherwise the variant works."""
    net = Net(FlowControlForAll, 2, window=1)
    net.submit(0, "x")
    net.run(LONG)
    net.check()


# -- E 26: whose acknowledgements does the window wait for? (SPO-S2) -------------------------------


class WindowOverAll(SpoSite):
    """minAL over all members, addressed or not."""

    def limit(self) -> int:
        return UNLIMITED if self.seq < min(self.al[self.index]) + super().limit() else 0


def test_e_26_a_window_over_all_members_closes_when_one_is_never_addressed() -> None:
    messages = [f"m{k}" for k in range(12)]
    for kind in (SpoSite, WindowOverAll):
        net = Net(kind, 3, window=4)
        for message in messages:
            net.submit(0, message, to=[1])
            net.run(20 * MS)
        net.run(LONG)
        if kind is SpoSite:
            net.settle()
            net.check()
        else:
            assert net.log(1) == messages[:2]  # two data PDUs, two NULLs, and that was that
            assert len(net[0].queue) == 10


# -- E 27: may an old PDU qualify by its partial number? (SPO-A1) ----------------------------------


class WithoutLowerBound(SpoSite):
    """TSEQ = TREQ or PSEQ = PREQ, as printed."""

    def on_sequenced(self, pdu: Dt, now: int) -> None:
        if pdu.seq < self.treq[pdu.src] and self.place(pdu, self.index) == self.preq[pdu.src]:
            self.accept(pdu, now)
        else:
            super().on_sequenced(pdu, now)


def repeated_for_another(kind: type[Any]) -> Net:
    """0 sends a and b to 1, who loses a; 2 hears a, b, and a again."""
    net = Net(kind, 3)
    net.lose(SpoDt, src=0, dst=1, times=1)
    net.submit(0, "a", to=[1])
    net.submit(0, "b", to=[1])
    net.run_until(lambda: net[2].treq[0] == 3)
    net.run_until(lambda: len(net.pdus(SpoDt)) == 3)
    net.run(MS)
    return net


def test_e_27_without_the_lower_bound_an_old_pdu_lowers_treq() -> None:
    assert repeated_for_another(SpoSite)[2].treq[0] == 3
    assert repeated_for_another(WithoutLowerBound)[2].treq[0] == 2


def test_e_27_without_the_lower_bound_acknowledgements_fall() -> None:
    def run(kind: type[Any]) -> Net:
        net = Net(watched(kind), 3)
        Watcher(net)
        net.lose(SpoDt, src=0, dst=1, times=1)
        for name in "ab":
            net.submit(0, name, to=[1])
        net.settle()
        return net

    run(SpoSite).check()
    with pytest.raises(Unsound, match="AL or PAL fell"):
        run(WithoutLowerBound)


# -- E 28: TREQ := TSEQ, or the number after it? (SPO-A2) ------------------------------------------


def test_e_28_if_treq_is_the_last_number_nothing_is_ever_acknowledged() -> None:
    for kind, logs in ((SpoSite, ["x"]), (TreqIsTheLast, [])):
        net = Net(kind, 3)
        net.submit(0, "x", to=[1, 2])
        net.run(LONG)
        assert net.log(1) == net.log(2) == logs


# -- E 29: what does a blocked PDU prove? (SPO-A3) -------------------------------------------------


class WithoutSkip(SpoSite):
    """Only an accepted PDU moves TREQ."""

    def note_position(self, pdu: Dt) -> None:
        pass


def test_e_29_without_the_skip_two_blocked_pdus_wait_for_each_other_for_ever() -> None:
    """f of 1 and g of 2, both for 0, each acknowledge a PDU of the other that 0 has lost."""
    for kind, logs in ((SpoSite, ["f", "g"]), (WithoutSkip, [])):
        net = Net(kind, 3)
        net.lose(src=1, dst=0)
        net.lose(src=2, dst=0)
        net.submit(1, "1 to 2", to=[2])
        net.submit(2, "2 to 1", to=[1])
        net.run(2 * MS)
        net.heal()
        net.submit(1, "f", to=[0])
        net.submit(2, "g", to=[0])
        net.run(LONG)
        assert sorted(net.log(0)) == logs
        assert [len(early) for early in net[0].blocked] == ([0, 1, 1] if not logs else [0, 0, 0])


# -- E 30: how does a member ask when it does not know whether it may? (SPO-L2) --------------------


class WithoutPoll(SpoSite):
    """The paper has requests by partial numbers only, and these are not known here."""

    def still_unsure(self, j: int, gap: list[int], now: int) -> None:
        gap[2] = now + self.config.wait_ns

    def on_stat_timer(self, now: int) -> None:
        self.stat_due = NEVER


def test_e_30_without_a_poll_lc2_and_a_silent_source_block_for_ever() -> None:
    """1's PDUs for 2 are lost at 0; 2 acknowledges them in q, for 0, and 1 has no more to say."""
    for kind, logs in ((SpoSite, ["q"]), (WithoutPoll, [])):
        net = Net(kind, 3)
        net.lose(src=1, dst=0)
        net.submit(1, "for 2", to=[2])
        net.run(50 * MS)
        net.heal()
        net.submit(2, "q", to=[0])
        net.run(LONG)
        assert net.log(0) == logs
        assert net.log(2) == ["for 2"]
        assert not net.pdus(SpoRetx)
        assert bool(net.pdus(SpoStat)) is (kind is SpoSite)


# -- E 31: what shows that everybody knows? (SPO-K) ------------------------------------------------


class PrintedPal(SpoSite):
    """PAL is fed by whatever is pre-acknowledged here, wherever else it went.

    To give the printed rule what it needs, NULLs for us queue like data.
    """

    def reset_state(self) -> None:
        super().reset_state()
        self.printed: list[deque[Dt]] = [deque() for _ in self.everyone]

    def enter(self, pdu: Dt, now: int) -> None:
        super().enter(pdu, now)
        if self.destinations(pdu) >> self.index & 1 or pdu.src == self.index:
            self.printed[pdu.src].append(pdu)

    def advance(self, now: int) -> None:
        for log in self.printed:
            while log and super().accepted_by_all(log[0]):
                self.note_preacknowledged(log.popleft())
        super().advance(now)

    def by_pal(self, pdu: Dt) -> bool:
        levels, dst = self.pal[pdu.src], self.destinations(pdu)
        return all(levels[k] > pdu.seq for k in self.everyone if dst >> k & 1)

    def known_by_all(self, pdu: Dt) -> bool:
        return self.by_pal(pdu)


def narrow_acknowledgements(kind: type[Any]) -> Net:
    """p goes from 0 to 1 and 2; what 1 and 2 say afterwards goes to 1 alone."""
    net = Net(watched(kind), 3)
    Watcher(net)
    net.submit(0, "p", to=[1, 2])
    net.run(MS)
    net.submit(1, "r", to=[1])
    net.lose(SpoDt, src=1)
    net.lose(SpoDt, src=2, dst=0)
    net.submit(2, "q", to=[1])
    net.run(MS)
    return net


def test_e_31_the_printed_pal_rule_acknowledges_what_others_cannot_know() -> None:
    """1 hears that 2 has p.  But 0 does not know that, and 2 does not know that 1 has it."""
    net = narrow_acknowledgements(SpoSite)
    assert "p" not in net.log(1)
    net.heal()
    net.settle()
    net.check()
    with pytest.raises(Unsound, match=r"^1 acknowledged .* cannot tell of"):
        narrow_acknowledgements(PrintedPal)


class BothRules(PrintedPal):
    """SPO-K decides; both are compared on the way."""

    compared = 0

    def known_by_all(self, pdu: Dt) -> bool:
        return SpoSite.known_by_all(self, pdu)

    def advance(self, now: int) -> None:
        super().advance(now)
        for log in self.prl:
            for pdu in log:
                BothRules.compared += 1
                assert SpoSite.known_by_all(self, pdu) == self.by_pal(pdu)


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_e_31_for_messages_to_everybody_both_rules_agree(loss: float) -> None:
    before = BothRules.compared
    net = Net(BothRules, 4, loss=loss, jitter_ns=10 * MS, seed=31)
    for k in range(40):
        net.submit(k % 4, f"{k}")
        net.run(5 * MS)
    net.settle()
    net.check()
    assert BothRules.compared - before > 500


# -- E 64: does a member hold its own PDU before the channel returned it? (TO-R1) ------------------


def own_copy_lost(kind: type[Any]) -> Net:
    """0 and 1 send at once, first 0; it does not get its own back, but gets 1's."""
    net = Net(kind, 3)
    net.lose(ToDt, src=0, dst=0, times=1)
    net.submit(0, "m1")
    net.submit(1, "m2")
    net.settle()
    return net


def test_e_64_own_pdus_in_the_vector_break_the_order_when_a_copy_of_its_own_is_lost() -> None:
    """A member that claims what the channel did not return puts it where nobody else has it."""
    net = own_copy_lost(ToChannelSite)
    assert net.log(0) == net.log(1) == net.log(2)
    net = own_copy_lost(ClaimsItsOwn)
    assert net.log(1) == net.log(2) == ["m1", "m2"]
    assert net.log(0) == ["m2", "m1"]


# -- further rules on which progress hangs ---------------------------------------------------------


def test_tr_6_with_fresh_vectors_members_compute_different_orders() -> None:
    """x and w cross; 2 loses x, and gets it again when its source has accepted w."""
    for kind, at_2 in ((ToSite, ["x", "w", "y"]), (FreshVectors, ["w", "x", "y"])):
        net = Net(kind, 3)
        net.lose(ToDt, src=0, dst=2, times=1)
        net.submit(0, "x", "y")
        net.submit(1, "w")
        net.run(LONG)
        assert net.log(0) == net.log(1) == ["x", "w", "y"]
        assert net.log(2) == at_2


class NullsOweNulls(PoSite):
    """NULLs create obligations, too (against TR-4)."""

    def note_obligations(self, pdu: Dt, now: int) -> None:
        super().note_obligations(pdu, now)
        if not pdu.bundle.sizes and pdu.src != self.index:
            self.owe((pdu.src, pdu.seq, 1), self.everyone_mask, now)


def test_tr_4_if_nulls_were_owed_nulls_the_network_would_never_fall_silent() -> None:
    for kind in (PoSite, NullsOweNulls):
        net = Net(kind, 3)
        net.submit(0, "x")
        net.run(LONG)
        net.check()
        assert net.silent is (kind is PoSite)


class QueuedNulls(SpoSite):
    """NULLs queue as data do (against TR-1)."""

    def enter(self, pdu: Dt, now: int) -> None:
        if isinstance(pdu, SpoNull) and pdu.src == self.index:
            self.rrl[pdu.src].append(pdu)
        else:
            super().enter(pdu, now)


def test_tr_1_a_queued_null_would_stand_in_the_way_of_data_behind_it() -> None:
    """0's last NULL is acknowledged by nobody, and the message to itself stands behind it."""
    for kind, logs in ((SpoSite, ["x", "to myself"]), (QueuedNulls, ["x"])):
        net = Net(kind, 3)
        net.submit(1, "x", to=[0])
        net.run(50 * MS)
        net.submit(0, "to myself", to=[0])
        net.run(LONG)
        assert net.log(0) == logs
