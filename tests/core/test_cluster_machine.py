"""PO, SPO and both modes of TO against models so simple that they cannot be wrong.

Hypothesis submits, loses, delays and lets time pass as it likes; after every step what members were
handed is compared with the model, and at the end, after the network has healed, nothing is missing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from roundelay.core.cluster.channel import ToChannelSite
from roundelay.core.cluster.po import PoSite
from roundelay.core.cluster.spo import SpoSite
from roundelay.core.cluster.to import ToSite
from roundelay.core.errors import QueueFull
from tests.core.cluster_net import MS, Net, Watcher, watched

PICK = st.integers(0, 11)


class PerSource:
    """PO: one list per source; a member has been handed a prefix of each."""

    def __init__(self) -> None:
        self.lists: dict[int, list[str]] = {}

    def submit(self, source: int, message: str, to: frozenset[int]) -> None:
        self.lists.setdefault(source, []).append(message)

    def judge(self, member: int, log: list[tuple[int, str]], *, all_of_it: bool) -> None:
        for source, messages in self.lists.items():
            mine = [message for origin, message in log if origin == source]
            assert mine == (messages if all_of_it else messages[: len(mine)])
        assert {origin for origin, _ in log} <= set(self.lists)


class PerDestination(PerSource):
    """SPO: one list per source and destination."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: dict[int, PerSource] = {}

    def submit(self, source: int, message: str, to: frozenset[int]) -> None:
        super().submit(source, message, to)
        for member in to:
            self.columns.setdefault(member, PerSource()).submit(source, message, to)

    def judge(self, member: int, log: list[tuple[int, str]], *, all_of_it: bool) -> None:
        self.columns.get(member, PerSource()).judge(member, log, all_of_it=all_of_it)


class OneList(PerSource):
    """TO: whoever is handed a message first decides its place, for everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, str]] = []

    def judge(self, member: int, log: list[tuple[int, str]], *, all_of_it: bool) -> None:
        super().judge(member, log, all_of_it=all_of_it)
        self.order += log[len(self.order) :]
        assert log == self.order[: len(log)]


class ClusterMachine(RuleBasedStateMachine):
    """What may happen to a cluster of any kind."""

    kind: ClassVar[type[Any]]
    model_kind: ClassVar[type[PerSource]]
    selective: ClassVar[bool] = False

    @initialize(
        sites=st.integers(2, 4),
        window=st.sampled_from([1, 2, 8]),
        policy=st.sampled_from(["deferred", "deferred", "eager"]),
        boot=st.sampled_from(["static", "static", "dynamic"]),
        bundle=st.booleans(),
    )
    def open(self, sites: int, **changes: Any) -> None:
        self.net = Net(watched(self.kind), sites, own_limit=4, attempts=40, **changes)
        self.watcher = Watcher(self.net)
        self.model = self.model_kind()
        self.submitted = 0

    def one(self, pick: int) -> int:
        return self.net.group[pick % len(self.net.group)]

    @rule(pick=PICK, wanted=st.integers(0, 15))
    def submit(self, pick: int, wanted: int) -> None:
        site, message = self.one(pick), f"{self.submitted}"
        everybody = frozenset(self.net.group)
        to = everybody
        if self.selective:
            to = frozenset(k for k in everybody if wanted >> k & 1) or frozenset({site})
        try:
            self.net.submit(site, message, to=sorted(to) if self.selective else None)
        except QueueFull:
            return
        self.model.submit(site, message, to)
        self.submitted += 1

    @rule(ms=st.sampled_from([1, 1, 2, 6, 40, 150]))
    def wait(self, ms: int) -> None:
        self.net.run(ms * MS)

    @rule(a=PICK, b=PICK, times=st.integers(1, 4))
    def lose(self, a: int, b: int, times: int) -> None:
        self.net.lose(src=self.one(a), dst=self.one(b), times=times)

    @rule(a=PICK, times=st.integers(1, 3))
    def lose_what_one_says(self, a: int, times: int) -> None:
        for member in self.net.group:
            self.net.lose(src=self.one(a), dst=member, times=times)

    @rule(a=PICK, b=PICK, ms=st.sampled_from([1, 8, 35, 70]))
    def delay(self, a: int, b: int, ms: int) -> None:
        self.net.slow[self.one(a), self.one(b)] = ms * MS

    def judge(self, *, all_of_it: bool = False) -> None:
        for member in self.net.group:
            log = [(got.source, got.text) for got in self.net.got[member]]
            self.model.judge(member, log, all_of_it=all_of_it)

    @invariant()
    def nothing_wrong(self) -> None:
        if hasattr(self, "net"):
            self.judge()

    def teardown(self) -> None:
        if not hasattr(self, "net"):
            return
        self.net.heal()
        self.net.settle()
        self.judge(all_of_it=True)
        assert not any(self.net.notices.values())
        for site in self.net:
            assert not site.busy()
            assert not site.debts


def machine(engine: type[Any], model: type[PerSource], *, to_some: bool = False) -> Any:
    class Machine(ClusterMachine):
        kind = engine
        model_kind = model
        selective = to_some

    Machine.__name__ = f"{engine.__name__}Machine"
    case = Machine.TestCase
    case.settings = settings(
        derandomize=True,
        deadline=None,
        max_examples=300,
        stateful_step_count=30,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    return case


TestPoAgainstModel = machine(PoSite, PerSource)
TestSpoAgainstModel = machine(SpoSite, PerDestination, to_some=True)
TestToKeyAgainstModel = machine(ToSite, OneList)
TestToChannelAgainstModel = machine(ToChannelSite, OneList)
