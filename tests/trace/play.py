"""A hand-played group: what its applications see, told to a checker and written to a trace.

`Play` takes one event at a time, so a test can plant any fault.  `GoodGroup` plays the part of a
correct protocol: a dumb model that keeps one list and hands it out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, Delivery
from roundelay.core.notices import notice
from roundelay.trace import Checker, Recorder, check_trace

MS = 1_000_000


def message(site: int, number: int, tail: bytes = b"") -> bytes:
    """A message as the simulator makes them: source and number first."""
    return site.to_bytes(2, "big") + number.to_bytes(8, "big") + tail


class Play:
    """Tells a checker what happens, and keeps the raw rows of it."""

    def __init__(self, sites: int = 3, **options: Any) -> None:
        self.sites = sites
        self.options = options
        self.checker = Checker(range(sites), **options)
        self.rows: list[ev.Row] = []
        self.time = 0
        self.indices = [0] * sites
        self.up = set(range(sites))

    def wait(self, ns: int = MS) -> Play:
        self.time += ns
        return self

    def _row(self, site: int, event: int, obj: object, ref: int = -1, peer: int = -1) -> None:
        self.rows.append((self.time, site, event, ref, peer, obj))

    def submit(self, site: int, *messages: bytes) -> Bundle:
        """Submit these messages, or one of the simulator's kind."""
        index = self.indices[site]
        bundle = Bundle.of(*messages) if messages else Bundle.of(message(site, index))
        self.indices[site] += len(bundle)
        self._row(site, ev.SUBMIT, bundle, index)
        self.checker.submitted(self.time, site, index, bundle)
        return bundle

    def deliver(
        self, site: int, seq: int, bundle: Bundle, source: int, number: int, stage: str = COMMITTED
    ) -> None:
        delivery = Delivery(seq, source, number, bundle, stage)
        self._row(site, ev.DELIVER, delivery, seq, source)
        self.checker.delivered(self.time, site, delivery)

    def notice(self, site: int, kind: str, *info: object) -> None:
        told = notice(kind, *info)
        self._row(site, ev.NOTICE, told)
        self.checker.noticed(self.time, site, told)

    def view(
        self, site: int, version: tuple[int, int], members: tuple[int, ...], start: int
    ) -> None:
        self.notice(site, "view", version, members, members[0], start)

    def crash(self, site: int, keeps: str = ev.DISK) -> None:
        self.up.discard(site)
        self._row(site, ev.CRASH, keeps)
        self.checker.crashed(self.time, site, keeps)

    def restart(self, site: int, keeps: str = ev.DISK) -> None:
        self.up.add(site)
        self._row(site, ev.RESTART, keeps)
        self.checker.restarted(self.time, site, keeps)

    def heal(self) -> None:
        self._row(-1, ev.MARK, ev.HEAL)
        self.checker.healed(self.time)

    def finish(self, settled: bool = True) -> Counter[str]:
        """End the run; how often each invariant was violated."""
        self._row(-1, ev.MARK, ev.END if settled else ev.STOP)
        self.checker.finished(self.time, self.up, settled)
        return self.counts()

    def counts(self) -> Counter[str]:
        return +Counter(self.checker.counts)

    def record(self, path: Path) -> Checker:
        """What a checker says that sees the trace file only."""
        options = dict(self.options)
        params = {"sites": self.sites, "order": options.pop("order", "total")}
        with Recorder(path, params=params) as recorder:
            recorder.rows.extend(self.rows)
        return check_trace(path, **options)


class Entry:
    """A line of the good group's log."""

    def __init__(self, seq: int, source: int, number: int, bundle: Bundle, version: int) -> None:
        self.seq, self.source, self.number = seq, source, number
        self.bundle, self.version = bundle, version
        self.seen = False  # somebody delivered it


class GoodGroup:
    """A correct group of total order: one log, one list in force, and sites that come and go."""

    def __init__(self, play: Play) -> None:
        self.play = play
        everyone = range(play.sites)
        self.log: list[Entry] = []
        self.end = 0  # next position
        self.at = [0] * play.sites  # entries handed to each site
        self.waiting: list[list[Bundle]] = [[] for _ in everyone]
        self.numbers = [0] * play.sites
        self.version = 0
        self.views = [0] * play.sites
        self.keeps = [ev.DISK] * play.sites
        for site in everyone:
            play.view(site, (0, 0), tuple(everyone), 0)

    def submit(self, site: int, count: int = 1) -> None:
        if site in self.play.up:
            first = self.play.indices[site]
            messages = [message(site, first + i) for i in range(count)]
            self.waiting[site].append(self.play.submit(site, *messages))

    def stamp(self, site: int, count: int) -> None:
        """Some waiting bundles of one source get their place, as one bundle."""
        taken, self.waiting[site] = self.waiting[site][:count], self.waiting[site][count:]
        if taken:
            bundle = Bundle.merged(taken)
            entry = Entry(self.end, site, self.numbers[site], bundle, self.version)
            self.log.append(entry)
            self.numbers[site] += 1
            self.end += len(bundle)

    def deliver(self, site: int, most: int = 1 << 30) -> None:
        """Hand the next entries to a site, as far as its list allows."""
        while site in self.play.up and most and self.at[site] < len(self.log):
            entry = self.log[self.at[site]]
            if not entry.seen and self.views[site] < self.version:
                return
            entry.seen = True
            self.play.deliver(site, entry.seq, entry.bundle, entry.source, entry.number)
            self.at[site] += 1
            most -= 1

    def reform(self, site: int) -> None:
        """A new list, announced at one of its members; the others follow in `adopt`."""
        if site not in self.play.up or 2 * len(self.play.up) <= self.play.sites:
            return
        self.version += 1
        self.members = tuple(sorted(self.play.up))
        self.start = self.end
        self.adopt(site)

    def adopt(self, site: int) -> None:
        """`site` hears of the newest list, with all that came before it."""
        if self.version and site in self.members and self.views[site] < self.version:
            if site not in self.play.up:
                return
            self.views[site] = self.version
            self.play.view(site, (self.version, 0), self.members, self.start)

    def crash(self, site: int, keeps: str, forget: bool) -> None:
        if site in self.play.up:
            self.play.crash(site, keeps)
            self.keeps[site] = keeps
            if keeps != ev.MEMORY and forget:
                self.waiting[site].clear()

    def restart(self, site: int, skip: int, notice_first: bool) -> None:
        """Come back; with nothing left, some of the log may not be available any more."""
        if site in self.play.up:
            return
        self.play.restart(site, self.keeps[site])
        if self.keeps[site] == ev.NOTHING_LEFT:
            self.at[site] = 0
            self.views[site] = -1
            self.skip(site, skip, notice_first)

    def skip(self, site: int, count: int, notice_first: bool = True) -> None:
        """The next entries cannot be had here any more: the site is told, and goes on behind."""
        seen = sum(entry.seen for entry in self.log[self.at[site] :])
        count = min(count, seen)
        if site not in self.play.up or not count:
            return
        gone = self.log[self.at[site] : self.at[site] + count]
        lo, hi = gone[0].seq, gone[-1].seq + len(gone[-1].bundle)
        self.at[site] += count
        if notice_first:
            self.play.notice(site, "gap_unavailable", lo, hi)
            self.deliver(site, 1)
        else:
            self.deliver(site, 1)
            self.play.notice(site, "gap_unavailable", lo, hi)
        mine = [entry.number for entry in gone if entry.source == site]
        if mine:
            self.play.notice(site, "indeterminate", mine[0], mine[-1] + 1)

    def settle(self) -> None:
        """Everybody is back, everything is delivered."""
        play = self.play
        for site in range(play.sites):
            self.restart(site, 0, True)
        play.wait().heal()
        play.wait()
        self.reform(0)
        for site in range(play.sites):
            self.adopt(site)
            self.stamp(site, 1 << 30)
        for site in range(play.sites):
            play.wait()
            self.deliver(site)
