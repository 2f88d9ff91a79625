"""Journals for the tests: small, with everything in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from roundelay.core.bundle import Bundle
from roundelay.journal.files import segments_of
from roundelay.journal.format import GAP, Run
from roundelay.journal.journal import Journal, JournalConfig

GROUP = "token:orders"
SENDERS = ("ann", "bob", "cecilia", "dörte")
NOW = 1_700_000_000_000_000_000


def some_runs(seed: int, count: int, at: int = 0, *, most: int = 5) -> list[Run]:
    """Runs that follow each other, all the same for the same seed."""
    rng = Random(seed)
    runs = []
    time = NOW
    for _ in range(count):
        time += rng.randrange(-5, 1000)
        records = rng.randint(1, most)
        if rng.random() < 0.4:
            messages = [rng.randbytes(rng.choice((1, 16)))] * records
        else:
            messages = [rng.randbytes(rng.randrange(0, 40)) for _ in range(records)]
        runs.append(
            Run(
                at, time, rng.choice(SENDERS), Bundle.of(*messages), rng.randrange(4),
                rng.randrange(3), rng.choice((-1, at)),
            )
        )  # fmt: skip
        at += records
    return runs


def record(
    folder: Path, runs: Iterable[Run], *, together: int = 4, config: JournalConfig | None = None
) -> Path:
    """A journal of these runs, closed; `together` of them are one commit."""
    journal = Journal(folder, GROUP, config or JournalConfig(sync="os", segment_bytes=1 << 20))
    waiting = 0
    for run in runs:
        journal.add(run)
        waiting += 1
        if waiting == together:
            journal.commit()
            waiting = 0
    journal.close()
    return folder


class Message:
    """What a record is to a model."""

    __slots__ = ("conference", "data", "kind", "position", "sender", "time")

    def __init__(self, position: int, run: Run, data: bytes | None) -> None:
        self.position = position
        self.time, self.sender = run.time, run.sender
        self.conference, self.kind, self.data = run.conference, run.kind, data

    @property
    def fields(self) -> tuple[object, ...]:
        return (
            self.position, self.time, self.sender, self.conference, self.kind, self.data,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __repr__(self) -> str:
        return f"Message{self.fields}"


def messages(runs: Iterable[Run]) -> list[Message]:
    """The records of runs, one by one; gaps are left out, heads have no data."""
    found = []
    for run in runs:
        if run.flags & GAP:
            continue
        whole: Sequence[bytes | None]
        whole = [None] * run.records if run.flags else run.bundle.messages()
        assert len(whole) == run.records
        found += [Message(run.position + i, run, data) for i, data in enumerate(whole)]
    return found


def gaps(runs: Iterable[Run]) -> list[tuple[int, int]]:
    return [(run.position, run.end) for run in runs if run.flags & GAP]


def flip(path: Path, byte: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes((old ^ 1 << bit,)))


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def only_segment(folder: Path) -> Path:
    (path,) = segments_of(folder)
    return path
