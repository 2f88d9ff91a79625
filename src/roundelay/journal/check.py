"""Is a journal what was written?  And if not: what another recorder has in its place.

`check` reads every byte.  It finds damaged blocks by their checksums, missing records by their
positions, and everything else (blocks exchanged, cut out, written by somebody else) by the hash
chain.  `repair` puts what is missing in from journals of the same group, segment by segment,
written aside and renamed; what no journal has stays a gap, and is said.

A repaired segment has other blocks than before, so its last link is another one.  `repairs.json`
keeps the old link, which is what the next segment says it follows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError, MalformedPdu
from roundelay.journal.format import GAP, Head, Run, encode_block, encode_head, link, part_of
from roundelay.journal.index import Index
from roundelay.journal.journal import Reader, Selection, read_meta, segments_of
from roundelay.journal.segment import Segment

REPAIRS: Final = "repairs.json"
BLOCK_BYTES: Final = 1 << 20


class Problem(Struct, frozen=True):
    """Something in a journal that is not as it should be."""

    segment: str
    what: str
    lo: int
    hi: int
    """Positions concerned, half-open; both -1 where none are lost."""


class Verdict(Struct):
    """What `check` found."""

    group: str
    begin: int
    end: int
    records: int
    segments: int
    problems: list[Problem]
    chain: str
    """The last link: two journals with the same one hold the same bytes."""

    @property
    def missing(self) -> list[tuple[int, int]]:
        return merged((one.lo, one.hi) for one in self.problems if one.hi > one.lo >= 0)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges, sorted and put together.

    >>> merged([(5, 7), (0, 3), (3, 4), (6, 9)])
    [(0, 4), (5, 9)]
    """
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], hi))
        else:
            found.append((lo, hi))
    return found


def _repairs(folder: Path) -> dict[str, Any]:
    path = folder / REPAIRS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def check(folder: Path) -> Verdict:
    """Read everything, believe nothing."""
    meta = read_meta(folder)
    verdict = Verdict(str(meta.get("group", "")), 0, 0, 0, 0, [], "")
    expected, chain = -1, b""
    repairs = _repairs(folder)
    paths = segments_of(folder)
    for path in paths:
        name = path.name
        verdict.segments += 1
        try:
            segment = Segment(path)
        except MalformedPdu as error:
            following = paths[verdict.segments :]
            hi = int(following[0].stem) if following else -1
            verdict.problems.append(Problem(name, str(error), int(path.stem), hi))
            chain = b""
            if hi >= 0:
                expected = hi
            continue
        try:
            segment.scan()
            if segment.head.journal.hex() != meta["id"]:
                verdict.problems.append(Problem(name, "of another journal", -1, -1))
            if expected < 0:
                verdict.begin = segment.base
            elif segment.base != expected:
                verdict.problems.append(Problem(name, "missing before it", expected, segment.base))
            if chain and segment.head.chain != chain:
                verdict.problems.append(Problem(name, "does not follow in the hash chain", -1, -1))
            chain = _check_segment(segment, verdict, path == paths[-1])
            chain = bytes.fromhex(repairs.get(name, {}).get("chain", "")) or chain
            expected = segment.end
        finally:
            segment.close()
    verdict.end = max(expected, verdict.begin)
    verdict.chain = chain.hex()
    return verdict


def _check_segment(segment: Segment, verdict: Verdict, last: bool) -> bytes:
    """Checks one scanned segment; its last link."""
    name = segment.path.name
    for damage in segment.damages:
        what = f"{damage.bytes} bytes at {damage.offset}: {damage.why}"
        verdict.problems.append(Problem(name, what, damage.lo, damage.hi))
    links = segment.links()
    chain = segment.head.chain
    for number, entry in enumerate(segment.blocks):
        chain = link(chain, os.pread(segment.file, entry.size, entry.offset))
        if number < len(links) and links[number] != chain and not segment.damages:
            what = f"block at {entry.offset} is not the one in the hash chain"
            verdict.problems.append(Problem(name, what, -1, -1))
            break
        for run in segment.read_block(number):
            if run.flags & GAP:
                verdict.problems.append(Problem(name, "gap", run.position, run.end))
            else:
                verdict.records += run.records
    if not last:
        _check_index(segment, verdict)
    return chain


def _check_index(segment: Segment, verdict: Verdict) -> None:
    try:
        index = Index(segment.index_path)
    except (OSError, MalformedPdu, ValueError) as error:
        if not segment.damages:
            verdict.problems.append(Problem(segment.path.name, f"index: {error}", -1, -1))
        return
    try:
        index.check()
    except MalformedPdu as error:
        verdict.problems.append(Problem(segment.path.name, str(error), -1, -1))
    finally:
        index.close()


class Repair(Struct):
    """What `repair` did."""

    restored: list[tuple[int, int]]
    still_missing: list[tuple[int, int]]
    segments: list[str]


def repair(folder: Path, sources: Sequence[Path]) -> Repair:
    """Put in what is missing, as far as a source has it; no recorder may be writing meanwhile."""
    verdict = check(folder)
    done = Repair([], [], [])
    if not verdict.problems:
        return done
    readers = []
    for source in sources:
        reader = Reader(source)
        readers.append(reader)
        if reader.meta.get("group") != verdict.group:
            raise ConfigError("source", source, f"a journal of {verdict.group}")
    paths = {path.name: path for path in segments_of(folder)}
    try:
        for name in dict.fromkeys(problem.segment for problem in verdict.problems):
            _mend(folder, paths[name], readers, verdict, done)
    finally:
        for reader in readers:
            reader.close()
    done.restored = merged(done.restored)
    done.still_missing = merged(done.still_missing)
    return done


def _mend(folder: Path, path: Path, readers: list[Reader], verdict: Verdict, done: Repair) -> None:
    """Write one segment anew: its good records, and those of others in place of the bad."""
    base = int(path.stem)
    following = [int(other.stem) for other in segments_of(folder) if int(other.stem) > base]
    journal = bytes.fromhex(read_meta(folder)["id"])
    head = Head(journal, base, time.time_ns(), bytes(32))
    runs: list[Run] = []
    old_chain = b""
    try:
        segment = Segment(path)
    except MalformedPdu:
        segment = None
    if segment is not None:
        segment.scan()
        head = segment.head
        for number in range(segment.block_count()):
            entry = segment.block(number)
            old_chain = link(
                old_chain or head.chain, os.pread(segment.file, entry.size, entry.offset)
            )
            runs += [run for run in segment.read_block(number) if not run.flags & GAP]
        segment.close()
    end = following[0] if following else max([run.end for run in runs], default=base)
    wanted = [one.hi for one in verdict.problems if one.segment == path.name]
    end = max([end, *wanted])
    if not following:
        # A damaged end: nobody here knows how far it went, the others do.
        end = max([end, *(reader.end for reader in readers if -1 in wanted)])
    whole = _filled(runs, base, end, readers, done)
    after = following and Segment(path_of_base(folder, following[0])).head.chain
    _write(path, head, whole)
    done.segments.append(path.name)
    kept = _repairs(folder)
    if after:
        kept[path.name] = {"chain": after.hex(), "when": time.time_ns()}
    aside = folder / (REPAIRS + ".new")
    aside.write_text(json.dumps(kept), encoding="utf-8")
    os.replace(aside, folder / REPAIRS)


def path_of_base(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}.rjs"


def _filled(runs: list[Run], base: int, end: int, readers: list[Reader], done: Repair) -> list[Run]:
    """`runs` with the holes filled from the readers; what nobody has becomes a gap."""
    found: list[Run] = []
    at = base
    for run in [*sorted(runs, key=lambda one: one.position), None]:
        until = run.position if run is not None else end
        while at < until:
            fetched = _fetch(at, until, readers)
            if fetched:
                found += fetched
                done.restored.append((at, fetched[-1].end))
                at = fetched[-1].end
            else:
                upto = _next_known(at, until, readers)
                found.append(Run(at, 0, "", Bundle((), b""), flags=GAP, count=upto - at))
                done.still_missing.append((at, upto))
                at = upto
        if run is not None:
            found.append(run)
            at = run.end
    return found


def _fetch(lo: int, hi: int, readers: list[Reader]) -> list[Run]:
    """Records from `lo` on without a hole, of the first reader that has any."""
    for reader in readers:
        found: list[Run] = []
        at = lo
        for run in _read(reader, lo, hi):
            if run.position != at or run.flags & GAP:
                break
            found.append(run)
            at = run.end
        if found:
            return found
    return []


def _read(reader: Reader, lo: int, hi: int) -> Iterable[Run]:
    try:
        yield from (part_of(run, lo, hi) for run in reader.read(Selection(since=lo, until=hi)))
    except MalformedPdu:
        return  # damaged there too


def _next_known(lo: int, hi: int, readers: list[Reader]) -> int:
    """The first position from `lo` on that some reader has."""
    best = hi
    for reader in readers:
        for run in _read(reader, lo, hi):
            if not run.flags & GAP and run.position > lo:
                best = min(best, run.position)
                break
    return max(best, lo + 1)


def _write(path: Path, head: Head, runs: list[Run]) -> None:
    aside = path.with_suffix(".rjs.new")
    links = []
    chain = head.chain
    with aside.open("wb") as file:
        file.write(encode_head(head))
        batch: list[Run] = []
        size = 0
        for run in [*runs, None]:
            if run is not None:
                batch.append(run)
                size += len(run.bundle.data) + 64
            if batch and (run is None or size >= BLOCK_BYTES):
                block = encode_block(batch, head.journal, max(one.time for one in batch))
                file.write(block)
                chain = link(chain, block)
                links.append(chain)
                batch, size = [], 0
        file.flush()
        os.fsync(file.fileno())
    os.chmod(aside, 0o600)
    path.with_suffix(".rji").unlink(missing_ok=True)
    path.with_suffix(".parquet").unlink(missing_ok=True)
    path.with_suffix(".rjc").write_bytes(b"".join(links))
    os.replace(aside, path)
    segment = Segment(path)
    segment.scan()
    segment.seal()
    segment.close()
