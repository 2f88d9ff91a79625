"""Where a sink puts rows between the tasks that made them and the commit that sends them.

A folder that executors and driver share, as they share a checkpoint; one folder in it a query::

    part-00003-<random>.arrow   what one task wrote, synced before the task ends
    epoch-17.json               these parts are epoch 17, and nothing else is: written before the
                                first of them is sent, so that whoever comes after a crash sends the
                                same rows, however Spark divides the epoch then
    done.json                   all epochs up to this one are sent

Parts that no epoch names are orphans: of tasks that failed or were repeated, or of a driver that
was killed before it could name them.  They go when the next epoch is done.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.durable import put, sync_path

PART: Final = "part-"
DONE: Final = "done.json"
T = TypeVar("T")


class PartFile(Struct, frozen=True):
    """What one task staged."""

    partition: int
    file: str
    rows: int


class EpochManifest(Struct, frozen=True):
    """What an epoch is."""

    epoch: int
    since: int
    """Nothing of it has a lower position in the group."""
    parts: tuple[PartFile, ...]
    nodes: tuple[str, ...]
    """Names of the nodes through which rows of it may have been sent."""


class Stage:
    """The folder of one query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # -- tasks -----------------------------------------------------------------------------

    def write(
        self, partition: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> PartFile:
        """A part, on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"{PART}{partition:05d}-{secrets.token_hex(8)}.arrow"
        rows = 0
        with path.open("xb") as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        sync_path(self.folder)
        return PartFile(partition, path.name, rows)

    def read(self, part: PartFile) -> Iterator[pa.RecordBatch]:
        try:
            with (
                pa.memory_map(str(self.folder / part.file)) as file,
                pa.ipc.open_stream(file) as rows,
            ):
                yield from rows
        except FileNotFoundError:
            allowed = f"a folder that executors and driver share: {part.file} was written by a task"
            raise ConfigError("stage", self.folder, f"{allowed} and is not here") from None

    # -- the commit ------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """The last epoch that is sent; -1: none is."""
        done = self._json(DONE, dict[str, int])
        return -1 if done is None else done["epoch"]

    def manifest(self, epoch: int) -> EpochManifest | None:
        return self._json(f"epoch-{epoch}.json", EpochManifest)

    def name(self, manifest: EpochManifest) -> EpochManifest:
        """From now on the epoch is what `manifest` says."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / f"epoch-{manifest.epoch}.json"
        put(path, msgspec.json.encode(manifest))
        return manifest

    def finish(self, epoch: int) -> None:
        """The epoch is sent."""
        put(self.folder / DONE, msgspec.json.encode({"epoch": epoch}))

    def collect(self) -> None:
        """Remove what no epoch needs that is still to be sent.

        To be called while no task of a later epoch can be running: by the commit of the last one.
        """
        done, needed = self.done, set()
        for manifest in self._manifests():
            if manifest.epoch > done:
                needed |= {part.file for part in manifest.parts}
            else:
                (self.folder / f"epoch-{manifest.epoch}.json").unlink(missing_ok=True)
        for path in self.folder.glob(f"{PART}*"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def discard(self, parts: Iterable[PartFile]) -> None:
        """Parts of an epoch that failed; those that an epoch names stay."""
        needed = {part.file for manifest in self._manifests() for part in manifest.parts}
        for part in parts:
            if part.file not in needed:
                (self.folder / part.file).unlink(missing_ok=True)

    def _manifests(self) -> list[EpochManifest]:
        parsed = [self._json(path.name, EpochManifest) for path in self.folder.glob("epoch-*.json")]
        return [manifest for manifest in parsed if manifest is not None]

    def _json(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.folder / name).read_bytes(), type=kind)
        except FileNotFoundError:
            return None
