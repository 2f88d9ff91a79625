"""The Playback Recorder of a group: what its node delivers goes into a journal.

Any node can record any group (`--record GROUP[:filter]`).  Deliveries are handed to a thread that
appends and syncs, many at a time, so the group never waits for the disk; `durable` says how far
the journal is on disk, and the node tells the others (INFO), who may wait for it
(`durability="recorded"`).  When more than `backlog_bytes` wait to be written, the recorder says
that it is slow; what is on its way is never dropped.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.journal.format import Run
from roundelay.journal.journal import Journal, JournalBroken, JournalConfig
from roundelay.node.switchboard import Batch, Receipt, Refusal, View

BACKLOG_BYTES: Final = 64 << 20
"""Deliveries waiting for the disk at which a recorder counts as slow."""


class Filter(Struct, frozen=True):
    """What is recorded whole; of everything else the heads are kept."""

    senders: frozenset[str] | None = None
    conferences: frozenset[int] | None = None
    kinds: frozenset[int] | None = None

    def takes(self, sender: str, conference: int, kind: int) -> bool:
        return (
            (self.senders is None or sender in self.senders)
            and (self.conferences is None or conference in self.conferences)
            and (self.kinds is None or kind in self.kinds)
        )


def _numbers(text: str, field: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split("+"))
    except ValueError:
        raise ConfigError(field, text, "whole numbers, with + between them") from None


def parse_record(text: str) -> tuple[str, Filter]:
    """`GROUP[:filter]`, as `--record` takes it; a filter is key=value, with commas between.

    >>> parse_record("token:orders:sender=ann+bob")[0]
    'token:orders'
    >>> sorted(parse_record("journal:x:conference=7+8,kind=1")[1].conferences)
    [7, 8]
    """
    group, colon, last = text.rpartition(":")
    if not colon or "=" not in last:
        return text, Filter()
    found: dict[str, frozenset[str] | frozenset[int]] = {}
    for part in last.split(","):
        key, _, value = part.partition("=")
        if key == "sender":
            found["senders"] = frozenset(value.split("+"))
        elif key in ("conference", "kind"):
            found[f"{key}s"] = _numbers(value, key)
        else:
            raise ConfigError("record", text, "filters sender=, conference=, kind=")
    return group, Filter(**found)  # type: ignore[arg-type]


def folder_of(base: Path, group: str) -> Path:
    safe = re.sub(r"[^A-Za-z0-9._-]", lambda found: f"%{ord(found[0]):02x}", group)
    return base / "journals" / safe


class Recorder:
    """An application that writes down what it is given."""

    def __init__(
        self,
        group: str,
        folder: Path,
        config: JournalConfig,
        *,
        wanted: Filter | None = None,
        changed: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.group = group
        self.wanted = wanted or Filter()
        self.journal = Journal(folder, group, config, say, advanced=self._advanced)
        self.durable = self.journal.durable
        self._next = self.journal.end
        self.backlog = 0
        self.broken = ""
        self.state = ""
        self._say = say
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write, name=f"record {group}", daemon=True)
        self._thread.start()

    # -- as the node calls it --------------------------------------------------------------

    def deliver(self, batch: Batch) -> None:
        position = batch.seq
        if position < 0:
            position = self._next  # no order in this service: the order in which it came here
        self._next = position + len(batch.bundle)
        run = Run(position, batch.time, batch.sender, batch.bundle)
        if not self.wanted.takes(batch.sender, 0, 0):
            run = self.journal.head_only(run)
        with self._lock:
            self.backlog += len(batch.bundle.data) + 64
        self._queue.put(run)

    def receipt(self, receipt: Receipt) -> None:
        """It sends nothing."""

    def refused(self, refusal: Refusal) -> None:
        """It sends nothing."""

    def viewed(self, view: View) -> None:
        self.state = view.state

    def writable(self, group: str) -> None:
        """It sends nothing."""

    # -- the writing thread ----------------------------------------------------------------

    def _write(self) -> None:
        """Everything that waits goes into one commit: under load, few syncs for many records."""
        queue, journal = self._queue, self.journal
        while True:
            run = queue.get()
            size, over = 0, False
            while True:
                if run is None:
                    over = True
                    break
                size += len(run.bundle.data) + 64
                if not self.broken:
                    self._add(run)
                if size >= 1 << 20 or queue.empty():
                    break
                run = queue.get()
            if not self.broken:
                try:
                    durable = journal.commit()
                except JournalBroken as error:
                    self._stop(str(error))
                else:
                    self._tell(durable)
            with self._lock:
                self.backlog -= size
            if over:
                return

    def _add(self, run: Run) -> None:
        try:
            self.journal.add(run)
        except JournalBroken as error:
            self._stop(str(error))

    def _stop(self, why: str) -> None:
        self.broken = why
        self._say(f"recorder of {self.group} stops: {why}")
        self._tell(self.durable)

    def _advanced(self) -> None:
        """The journal has synced by itself (policy `interval`), or could not."""
        if self.journal.broken and not self.broken:
            self._stop(self.journal.broken)
        else:
            self._tell(self.journal.durable)

    def _tell(self, durable: int) -> None:
        if durable > self.durable or self.broken:
            self.durable = max(durable, self.durable)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._changed)

    @property
    def slow(self) -> bool:
        return self.backlog > BACKLOG_BYTES

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self.journal.close()

    def status(self) -> dict[str, object]:
        return self.journal.status() | {
            "backlog_bytes": self.backlog,
            "slow": self.slow,
            "filter": {
                "senders": sorted(self.wanted.senders) if self.wanted.senders else None,
                "conferences": sorted(self.wanted.conferences) if self.wanted.conferences else None,
                "kinds": sorted(self.wanted.kinds) if self.wanted.kinds else None,
            },
        }
