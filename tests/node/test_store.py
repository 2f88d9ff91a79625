"""What a member keeps on disk comes back as it was, or the damage is noticed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roundelay.core.engine import MS
from roundelay.core.errors import ConfigError
from roundelay.core.positive_ack import PositiveAckStable, Reserved
from roundelay.core.token.stable import UNSYNCED, Joined, Listed, Stable, Wiped
from roundelay.node.storage import store as store_module
from roundelay.node.storage.store import MAGIC, Seal, Store, _frame
from tests.core.ring import Ring

SEAL = b"".join(_frame(Seal()))


def quiet(text: str) -> None:
    raise AssertionError(f"nothing to say, but: {text}")


def token_store(path: Path, say: Callable[[str], None]) -> Store:
    return Store(path, Stable, say)


def settle(store: Store) -> None:
    """Wait for the new file if one is being written."""
    if store._rotation is not None:
        store._rotation.wait()


def fields(stable: Stable) -> dict[str, Any]:
    """What was folded; `whole` is no part of it."""
    return {name: getattr(stable, name) for name in Stable.__slots__ if name != "whole"}


def fold(records: list[Any]) -> Stable:
    stable = Stable()
    for record in records:
        stable.apply(record)
    return stable


@pytest.fixture(scope="module")
def records() -> list[Any]:
    """What a site persists that has seen messages, a crash of another, and a reformation."""
    ring = Ring(3)
    for number in range(4):
        ring.submit(number % 3, f"message {number}")
        ring.run(200 * MS)
    ring.crash(2)
    ring.submit(1, "without the third")
    ring.run(20_000 * MS)
    ring.restart(2)
    ring.run(20_000 * MS)
    ring.submit(2, "with the third again")
    ring.run(2000 * MS)
    kept = list(ring.persisted[0])
    assert len(ring.log(0)) == 6
    assert sum(isinstance(record, Listed) for record in kept) > 1
    return kept


def written(path: Path, records: list[Any]) -> bytes:
    """The file of a member that was killed after it had written these."""
    store = token_store(path, quiet)
    for record in records:
        store.write([record], sync_all=False)
    found = path.read_bytes()
    store.close()
    path.write_bytes(found)
    return found


def copied(store: Store) -> Store:
    """What would be found if the member were killed now."""
    copy = store.path.with_name(f"copy of {store.path.name}")
    shutil.copy(store.path, copy)
    return token_store(copy, quiet)


def test_records_come_back_as_they_were_written(tmp_path: Path, records: list[Any]) -> None:
    path = tmp_path / "deep" / "token.log"
    store = token_store(path, quiet)
    assert store.stable is None
    for record in records:
        store.write([record], sync_all=False)
    store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = token_store(path, quiet)
    assert fields(again.stable) == fields(fold(records))
    again.close()


def test_a_torn_tail_is_cut_wherever_it_was_torn(tmp_path: Path, records: list[Any]) -> None:
    path = tmp_path / "token.log"
    assert isinstance(records[-1], UNSYNCED)
    before = len(written(path, records[:-1]))
    path.unlink()
    whole = written(path, records)
    expected = fields(fold(records[:-1]))
    for size in range(before + 1, len(whole)):
        path.write_bytes(whole[:size])
        said: list[str] = []
        store = token_store(path, said.append)
        assert fields(store.stable) == expected
        assert said == [f"{path}: the last {size - before} bytes were not written whole; left out"]
        # It goes on from there.
        store.write(records[-1:], sync_all=False)
        store.close()
        again = token_store(path, quiet)
        assert fields(again.stable) == fields(fold(records))
        again.close()


def test_a_file_torn_at_its_very_beginning_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "token.log"
    for size in range(len(MAGIC)):
        path.write_bytes(MAGIC[:size])
        store = token_store(path, quiet)
        assert store.stable is None
        store.write([Joined((1, 0))], sync_all=False)
        store.close()
        again = token_store(path, quiet)
        assert again.stable.max_joined == (1, 0)
        again.close()


@pytest.mark.parametrize("end", ["a promise", "a message"])
def test_a_flipped_bit_is_noticed_wherever_it_is(
    tmp_path: Path, records: list[Any], end: str
) -> None:
    """In the last promise, too: a seal stands behind it.  Only in what was never synced, at the
    very end, nothing tells it from a write that was not finished; no promise is there."""
    path = tmp_path / "token.log"
    few = [*records[:5], Joined((9, 1))]
    if end == "a message":
        few.append(next(record for record in records[5:] if isinstance(record, UNSYNCED)))
    whole = written(path, few)
    promises = few if end == "a promise" else few[:-1]
    synced = len(written(tmp_path / "shorter.log", promises))
    last = synced - len(SEAL)
    for at in range(len(MAGIC), len(whole)):
        for bit in {at % 8, 7 * (at % 2)}:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            said: list[str] = []
            store = token_store(path, said.append)
            store.close()
            assert len(said) == 1, (at, bit)
            if at >= last:
                assert fields(store.stable) == fields(fold(promises))
                assert not store.stable.whole
                continue
            # Promises may be lost with it: as if the disk were.
            assert store.stable is None
            assert store.damaged
            assert "sound records behind; moved to token.damaged" in said[0]
            assert (tmp_path / "token.damaged").read_bytes() == damaged


def test_what_was_torn_behind_the_last_seal_costs_no_promise(
    tmp_path: Path, records: list[Any]
) -> None:
    """A machine that dies may have written the end of what it did not sync, and not its middle."""
    path = tmp_path / "token.log"
    synced = written(path, [*records[:5], Joined((9, 1))])
    whole = written(tmp_path / "longer.log", [*records[:5], Joined((9, 1)), *tail(records)])
    assert whole.startswith(synced)
    for at in range(len(synced), len(whole)):
        path.write_bytes(whole[:at] + bytes(min(16, len(whole) - at)) + whole[at + 16 :])
        said: list[str] = []
        store = token_store(path, said.append)
        store.close()
        assert not store.damaged
        assert store.stable.max_joined == (9, 1)
        assert not store.stable.whole


def tail(records: list[Any]) -> list[Any]:
    """Records that follow the first five and need no sync."""
    rest = records[5:]
    return rest[: next(i for i, one in enumerate(rest) if not isinstance(one, UNSYNCED))]


def test_a_file_of_before_there_were_seals_opens_and_is_not_taken_for_whole(
    tmp_path: Path, records: list[Any]
) -> None:
    path = tmp_path / "token.log"
    path.write_bytes(MAGIC + b"".join(part for one in records for part in _frame(one)))
    store = token_store(path, quiet)
    assert fields(store.stable) == fields(fold(records))
    assert not store.stable.whole
    store.close()


def test_after_the_death_of_a_process_its_file_is_known_to_be_whole(
    tmp_path: Path, records: list[Any]
) -> None:
    path = tmp_path / "token.log"
    store = token_store(path, quiet)
    for record in records:
        store.write([record], sync_all=False)
    found = path.read_bytes()
    killed = token_store(path, quiet)  # the first one's life ended there
    assert killed.stable.whole
    killed.close()
    clean = token_store(path, quiet)  # an orderly end says so itself
    assert clean.stable.whole
    # A machine that died took unsynced writes along: the file is shorter than was counted.
    clean.write(tail(records), sync_all=False)
    path.write_bytes(found[: -len(found) // 8])
    lost = token_store(path, lambda text: None)
    assert not lost.stable.whole
    lost.close()
    assert token_store(path, quiet).stable.whole  # what it had when it was closed is there
    store.close()
    clean.close()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "token.log"
    path.write_bytes(b"dear diary, today")
    with pytest.raises(ConfigError, match="move this one away"):
        token_store(path, quiet)
    assert path.read_bytes() == b"dear diary, today"


def test_a_new_file_says_the_same_as_the_long_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ROTATE_BYTES", 2000)
    monkeypatch.setattr(store_module, "ROTATE_TIMES", 1)
    ring = Ring(3)
    store = token_store(tmp_path / "token.log", quiet)
    taken = rotated = 0
    for number in range(60):
        ring.submit(number % 3, f"message {number}")
        ring.run(150 * MS)
        store.write(ring.persisted[0][taken:], sync_all=False)
        taken = len(ring.persisted[0])
        if number % 2:
            settle(store)  # otherwise more may be written while the new file is
        if not store.rotate(ring[0]):
            continue
        rotated += 1
        assert store.size == store.path.stat().st_size
        found = copied(store)
        found.close()
        model = fold(ring.persisted[0])
        assert fields(found.stable) | {"first_kept": 0} == fields(model) | {"first_kept": 0}
        assert found.stable.first_kept >= model.first_kept
    assert rotated > 2
    assert not list(tmp_path.glob("*.new"))
    store.close()
    last = token_store(store.path, quiet)
    assert fields(last.stable)["seq"] == ring[0].log.seq == 60
    last.close()


def test_a_member_that_dies_while_a_new_file_is_written_has_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ROTATE_BYTES", 100)
    ring = Ring(3)
    ring.submit(0, "before")
    ring.run(500 * MS)
    store = token_store(tmp_path / "token.log", quiet)
    store.write(ring.persisted[0], sync_all=False)
    taken = len(ring.persisted[0])
    assert not store.rotate(ring[0])
    ring.submit(1, "meanwhile")
    ring.run(500 * MS)
    store.write(ring.persisted[0][taken:], sync_all=False)
    settle(store)
    assert (tmp_path / "token.new").exists()
    found = copied(store)
    found.close()
    assert fields(found.stable) == fields(fold(ring.persisted[0]))
    store.close()
    assert not (tmp_path / "token.new").exists()


def test_promises_are_synced_and_commits_only_where_there_is_no_other_copy(
    tmp_path: Path, records: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(handle)
        real(handle)

    commit = next(record for record in records if not isinstance(record, Joined | Listed))
    listed = next(record for record in records if isinstance(record, Listed))
    store = token_store(tmp_path / "token.log", quiet)
    monkeypatch.setattr(os, "fsync", fsync)
    store.write([commit], sync_all=False)
    assert synced == []
    store.write([commit], sync_all=True)
    assert len(synced) == 1
    for promise in (Joined((3, 1)), listed, Wiped(True)):
        synced.clear()
        store.write([commit, promise, commit], sync_all=False)
        assert len(synced) == 1
    store.close()
    numbers = Store(tmp_path / "pa.log", PositiveAckStable, quiet)
    synced.clear()
    numbers.write([Reserved(64)], sync_all=False)
    assert len(synced) == 1
    numbers.close()
    assert Store(tmp_path / "pa.log", PositiveAckStable, quiet).stable.upto == 64


def test_a_disk_that_does_not_sync_stops_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = token_store(tmp_path / "token.log", quiet)

    def fsync(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        store.write([Joined((1, 0))], sync_all=False)
