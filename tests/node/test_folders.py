"""Folders of groups: one for each name, every legal name has one, and old ones are found."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.file_names import file_name
from roundelay.journal.format import Run
from roundelay.journal.journal import Journal, JournalConfig
from roundelay.journal.reader import Reader
from roundelay.node.groups import NAME_BYTES_MAX, check_name
from roundelay.node.storage.folders import claim_group, claim_journal, group_folder, journal_folder
from roundelay.trace.live import LiveTrace
from tests.node.live import Net, delivered

SLASH, RING = "token:team/alpha", "token:team˺lpha"
"""Two names that earlier versions wrote as token%3ateam%2falpha."""


def _legal(name: str) -> bool:
    try:
        return bool(check_name(name))
    except ConfigError:
        return False


names = st.text(
    st.one_of(st.characters(), st.sampled_from("aA._-~%:/1aK\u212a\u02fa")), min_size=1, max_size=90
).filter(_legal)


@given(names, names)
def test_two_groups_never_share_a_folder(one: str, other: str) -> None:
    for a, b in ((one, other), (one, f"{one}.1"), (one, file_name(one)), (one, one.swapcase())):
        if a != b:
            # Not even where a file system takes capitals for small letters.
            assert file_name(a).lower() != file_name(b).lower()


@given(names)
def test_every_legal_name_makes_a_legal_file_name(name: str) -> None:
    found = file_name(name)
    assert found.isascii()
    assert not {"/", "\0"} & set(found)
    assert 0 < len(found) <= 180
    assert not found.startswith((".", "_"))


def test_a_long_name_is_cut_and_still_its_own() -> None:
    one, other = "ы" * 126 + "a", "ы" * 126 + "b"
    assert len(one.encode()) <= NAME_BYTES_MAX
    assert len({file_name(one), file_name(other)}) == 2
    with tempfile.TemporaryDirectory() as base:
        assert claim_group(Path(base), one) != claim_group(Path(base), other)
        LiveTrace(Path(base), group=one, name="ы" * 32, site=0).close()


@pytest.mark.parametrize("name", ["token:orders", "grsb:news", "to:a-b_c.d", "token:team/alpha"])
def test_names_of_ascii_keep_their_folders(name: str) -> None:
    old = "".join(one if one.isalnum() or one in "._-" else f"%{ord(one):02x}" for one in name)
    assert file_name(name) == old


async def test_members_of_two_groups_whose_folders_were_one(tmp_path: Path) -> None:
    """The second one deleted the promises of the first."""
    async with Net() as net:
        for group in (SLASH, RING):
            member = await net.join("a", group, dir=tmp_path, min_members=1)
            await member.group.broadcast(group.encode())
            await member.die()
    files = {path.parent.name: path for path in tmp_path.glob("groups/*/ring-*.log")}
    assert len(files) == 2, f"{len(files)} of two files of promises are there"


def _old_journal(folder: Path, group: str) -> None:
    journal = Journal(folder, group, JournalConfig())
    journal.add(Run(0, 1, "a", Bundle.of(b"one")))
    journal.close()


def test_an_old_journal_is_found_and_moved(tmp_path: Path) -> None:
    group = "token:привет"
    _old_journal(tmp_path / "journals" / "token%3a%43f%440%438%432%435%442", group)
    folder = claim_journal(tmp_path, group)
    assert folder == journal_folder(tmp_path, group)
    assert [bytes(run.bundle.data) for run in Reader(folder).read()] == [b"one"]


def test_an_old_journal_of_another_group_is_left_to_it(tmp_path: Path) -> None:
    old = tmp_path / "journals" / "token%3ateam%2falpha"
    _old_journal(old, SLASH)
    assert not claim_journal(tmp_path, RING).exists()
    assert claim_journal(tmp_path, SLASH) == old
    shutil.rmtree(old)
    _old_journal(old, RING)  # and the other way round: it stands where it does not belong
    assert not claim_journal(tmp_path, SLASH).exists()
    assert Reader(claim_journal(tmp_path, RING)).meta.group == RING


def test_old_promises_are_found_and_never_those_of_another_group(tmp_path: Path) -> None:
    old = tmp_path / "groups" / "token%3ateam%2falpha"
    old.mkdir(parents=True)
    (old / "token.log").write_bytes(b"promises")  # which do not say whose they are
    assert not (claim_group(tmp_path, RING, {SLASH, RING}) / "token.log").exists()
    assert (claim_group(tmp_path, SLASH, {SLASH, RING}) / "token.log").exists()
    assert group_folder(tmp_path, SLASH) == old
    upper = tmp_path / "groups" / "token%3aOrders"
    upper.mkdir()
    (upper / "token.log").write_bytes(b"promises")
    assert (claim_group(tmp_path, "token:Orders") / "token.log").read_bytes() == b"promises"


async def test_a_member_goes_on_in_the_folder_of_an_earlier_version(tmp_path: Path) -> None:
    async with Net() as net:
        group, members = "Straße", ("a", "b")
        options = {"members": members, "resilience": 0}
        both = [await net.join(name, group, dir=tmp_path / name, **options) for name in "ab"]
        await both[0].group.broadcast(b"one")
        await delivered(both, 1)
        for member in both:
            await member.die()
        for name in members:  # as it was
            folder = group_folder(tmp_path / name, f"token:{group}")
            (folder / "group").unlink()
            folder.rename(folder.with_name("token%3aStra%dfe"))
        both = [await net.join(n, group, dir=tmp_path / n, since=0, **options) for n in "ab"]
        await both[1].group.broadcast(b"two")
        await delivered(both, 2)
        assert both[0].data == [b"one", b"two"]
