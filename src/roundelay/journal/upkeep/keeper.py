"""What is done to segments beside the appending: sealing, filling, rewriting, letting go.

All of it happens under one lock and never in the appending thread, which only wakes the keeper.
A crash in the middle leaves a segment without an index, which is sealed at the next opening, or a
file written aside, which is removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from roundelay.core.errors import MalformedPdu, RoundelayError
from roundelay.core.positions import Range, union
from roundelay.durable import Disk
from roundelay.journal.files import JournalBroken, index_of, parquet_of, path_of, write_ends
from roundelay.journal.format import FILLED, GAP, NO_LINK, Head, Run, part_of
from roundelay.journal.index import Index, index_beside
from roundelay.journal.segment import Segment
from roundelay.journal.upkeep.rewrite import Fetch, Filling, link_of, rewrite, seal, verify
from roundelay.journal.upkeep.sealing import WORTH_BYTES, Sealer, SealingTask

if TYPE_CHECKING:
    from roundelay.journal.journal import Journal

LOOK_S: Final = 30.0
"""How often old records are looked for, at least."""


class Keeper:
    """Looks after the segments of one journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._disk: Disk = journal.disk
        self._shape = threading.RLock()
        self._awake = threading.Event()
        self._over = False
        self._unread = True
        self._sealer = Sealer()
        self._filling: Filling | None = None
        self._noted: tuple[int, int, str] | None = None
        """What was last said of where the journal begins and ends."""
        self._forgotten: dict[int, frozenset[int]] = {}
        """Segment to the conferences that were dropped in it."""
        self._begun = (-1, 0.0)
        """The segment that is appended to, and when it was first seen with something in it."""
        self.anchor: tuple[int, bytes] = self._last_link()
        self._thread = threading.Thread(target=self._run, name="journal-keeper", daemon=True)
        self._thread.start()

    def _last_link(self, until: int = 1 << 63) -> tuple[int, bytes]:
        """The last link of the chain before a position, and the segment it belongs to."""
        for segment in reversed(self._journal.segments):
            if segment.base < until and segment.sealed:
                link = link_of(segment, self._journal.segments)
                if link is not None:
                    return segment.base, link
        return 0, NO_LINK

    def wake(self) -> None:
        self._awake.set()

    def close(self) -> None:
        """Finish what is to be done, and seal the last segment too."""
        self._over = True
        self._awake.set()
        self._thread.join()
        with self._shape:
            try:
                self._finish_filling()
                if not self._journal.broken:
                    self._seal_all(last=True)
                    self._note_ends()
            except OSError as error:
                self._journal.say(f"a segment could not be sealed: {error}")
            finally:
                self._sealer.close()

    def _run(self) -> None:
        while not self._over:
            self._awake.wait(LOOK_S)
            self._awake.clear()
            try:
                self.settle()
                if self._unread:
                    self._unread = False
                    self.scrub()
            except (OSError, RoundelayError) as error:
                # The segment stays as it is; a full disk stops the appending by itself.
                self._journal.say(f"a segment could not be sealed: {error}")

    def settle(self) -> None:
        """Seal what is complete, let go what is old."""
        with self._shape:
            self._round_off()
            self._seal_all()
            self._retain()
            self._drop_conferences()
            self._note_ends()

    def _note_ends(self) -> None:
        """Say beside the segments how far they reach."""
        journal = self._journal
        if journal.segments:
            known = (journal.ends.first, journal.ends.last, journal.ends.link)
            if self._over or known != self._noted:
                write_ends(journal.folder, journal.ends, self._disk)
                self._noted = known

    # -- sealing ---------------------------------------------------------------------------

    def _seal_all(self, last: bool = False) -> None:
        for segment in self._journal.segments:
            if self._filling is not None and segment is self._filling.segment:
                continue
            if segment is self._journal.active and not last:
                continue
            if self._to_seal(segment):
                self._seal(segment)
                self._retain()  # where much is written, sealing may never be done
            if segment.sealed and segment in self._journal.segments:
                self._parquet(segment)

    @staticmethod
    def _to_seal(segment: Segment) -> bool:
        return not segment.sealed and not segment.damages and segment.end > segment.base

    def _seal(self, segment: Segment) -> None:
        before = self._last_link(segment.base)[1]
        try:
            link = self._seal_beside(segment, before) or seal(segment, before, self._disk)
        except MalformedPdu as error:
            self._journal.say(f"{segment.path.name}: {error}; it is not sealed")
            segment.scan(segment.end)
            return
        if not segment.head.apart:
            self.anchor = (segment.base, link)

    def _seal_beside(self, segment: Segment, before: bytes) -> bytes | None:
        """Seal a large segment in another process; None if that is not worth it or not possible."""
        if segment.size < WORTH_BYTES or type(self._disk) is not Disk:
            return None
        group, parquet = self._journal.group, self._journal.config.parquet
        path = str(segment.path)
        link = self._sealer.seal(
            SealingTask(path, segment.journal, segment.size, before, group, parquet)
        )
        if link is not None:
            segment.learn(Index(index_of(segment.path)))
        return link

    def scrub(self) -> None:
        """Read what was sealed long ago: a bit may have flipped since."""
        for segment in self._journal.segments:
            with self._shape:
                if self._over or self._journal.broken:
                    return
                if segment.sealed and segment in self._journal.segments:
                    self._read_through(segment)

    def _read_through(self, segment: Segment) -> None:
        task = SealingTask(str(segment.path), segment.journal, segment.size, verify=True)
        try:
            worth = segment.size >= WORTH_BYTES
            if not worth or self._sealer.seal(task) is None:
                verify(segment)
        except MalformedPdu:
            bad = Segment(segment.path, segment.journal)
            bad.scan(segment.end)
            for damage in bad.damages:
                self._journal.say(f"{damage.path.name}: {damage} are missing")
            self._journal.put_in(bad)

    def _parquet(self, segment: Segment) -> None:
        if self._journal.config.parquet:
            from roundelay.journal.parquet import to_parquet

            to_parquet(segment, self._journal.group)

    # -- letting go ------------------------------------------------------------------------

    def _round_off(self) -> None:
        """Where records go by their age, a segment is complete when its first ones are that old:
        in a group where little is said it would not fill up for years."""
        config, active = self._journal.config, self._journal.active
        ages = [age for age in (config.keep_s, *config.keep_conference_s.values()) if age > 0]
        if not ages or active is None or active.end == active.base:
            return
        if self._begun[0] != active.base:
            self._begun = (active.base, time.monotonic())
        elif time.monotonic() - self._begun[1] >= min(ages):
            self._journal.complete()

    def _retain(self) -> None:
        """Let the oldest segments go, as far as the configuration says."""
        config, journal = self._journal.config, self._journal
        size = sum(segment.size for segment in journal.segments)
        now = time.time_ns()
        for oldest in journal.segments[:-1]:
            too_much = config.keep_bytes and size > config.keep_bytes
            too_old = config.keep_s and now - oldest.newest > config.keep_s * 1e9
            if oldest is journal.active or not (too_much or too_old):
                return
            if self._to_seal(oldest):
                return  # its link in the chain is needed first
            if self._filling is not None and oldest is self._filling.segment:
                self._finish_filling()
            journal.let_go(oldest)
            with suppress(OSError):  # on a full disk letting go comes first
                self._note_ends()
            self._forgotten.pop(oldest.base, None)
            size -= oldest.size
            for path in (index_of(oldest.path), parquet_of(oldest.path), oldest.path):
                path.unlink(missing_ok=True)

    def _drop_conferences(self) -> None:
        kept, now = self._journal.config.keep_conference_s, time.time_ns()
        for segment in self._journal.segments:
            old = {
                conference
                for conference, seconds in kept.items()
                if now - segment.newest > seconds * 1e9
            }
            self._drop(segment, frozenset(old))

    def _drop(self, segment: Segment, conferences: frozenset[int]) -> int:
        """Rewrite a sealed segment without the payload of conferences; bytes saved."""
        new = conferences - self._forgotten.get(segment.base, frozenset())
        if not segment.sealed or not new:
            return 0
        index = index_beside(segment.path)
        if index is None:
            return 0
        with index:
            known = index.conferences
        self._forgotten[segment.base] = self._forgotten.get(segment.base, frozenset()) | new
        if not any(known.get(conference) for conference in new):
            return 0
        smaller, _ = rewrite(segment, self._journal.segments, self._disk, drop=new)
        self._journal.put_in(smaller)
        self._parquet(smaller)
        return segment.size - smaller.size

    def forget(self, conferences: frozenset[int], before: int | None) -> int:
        with self._shape:
            if before is None:
                self._journal.complete()
            self._seal_all()
            limit = self._journal.end if before is None else before
            return sum(
                self._drop(segment, conferences)
                for segment in self._journal.segments
                if segment.end <= limit
            )

    # -- filling ---------------------------------------------------------------------------

    def fill(self, runs: Iterable[Run]) -> list[Range]:
        filled: list[Range] = []
        patches: dict[int, list[Run]] = {}
        try:
            with self._shape:
                for run in runs:
                    if not run.flags & GAP:
                        self._place(run, patches, filled)
                if self._filling is not None:
                    self._filling.sync()
                for base, parts in patches.items():
                    filled += self._patch(base, sorted(parts, key=lambda run: run.position))
        except OSError as error:
            self._filling = None
            raise JournalBroken(f"what was missing could not be written: {error}") from error
        return union(filled)

    def _place(self, run: Run, patches: dict[int, list[Run]], filled: list[Range]) -> None:
        """Cut a run along the segments: what lies between them, what belongs into one."""
        at = run.position
        for segment in self._journal.segments:
            if at >= run.end:
                return
            if at < segment.base:
                part = part_of(run, at, min(run.end, segment.base))
                self._between(part, segment.base)
                filled.append((part.position, part.end))
                at = part.end
            for lo, hi in segment.missing:
                if at < hi and lo < run.end:
                    patches.setdefault(segment.base, []).append(
                        part_of(run, max(at, lo), min(run.end, hi))
                    )
            at = max(at, segment.end)

    def _between(self, run: Run, until: int) -> None:
        """A run that no segment covers: it goes into segments of its own."""
        filling = self._filling
        if filling is not None:
            size = filling.size + filling.waiting_bytes
            if filling.end != run.position or size > self._journal.config.segment_bytes:
                self._finish_filling()
                filling = None
        if filling is None:
            now = time.time_ns()
            head = Head(self._journal.id, run.position, now, *self.anchor, flags=FILLED)
            path = path_of(self._journal.folder, run.position)
            filling = self._filling = Filling(path, head, self._disk)
            self._journal.put_in(filling.segment)
        filling.add(run)
        if filling.end == until:
            self._finish_filling()

    def _finish_filling(self) -> None:
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.finish()
            self._disk.sync_folder(self._journal.folder)
            self._seal(filling.segment)
            self._parquet(filling.segment)

    def mend(self, segment: Segment, fetch: Fetch, distrust: bool = False) -> list[Range]:
        """Write a segment anew, with what it lacks as far as it can be had."""
        with self._shape:
            segments = self._journal.segments
            mended, restored = rewrite(segment, segments, self._disk, fetch, distrust=distrust)
            self._journal.put_in(mended)
            self._forgotten.pop(segment.base, None)
            self._parquet(mended)
            return restored

    def _patch(self, base: int, parts: list[Run]) -> list[Range]:
        """Write a segment anew with what it lacked."""
        journal = self._journal
        active = journal.active
        if active is not None and active.base == base:
            journal.complete()
        self._seal_all()
        segment = next((other for other in journal.segments if other.base == base), None)
        if segment is None:
            return []  # let go meanwhile
        return self.mend(
            segment, lambda lo, hi: [run for run in parts if run.end > lo and run.position < hi]
        )
