"""Whose a name is: one name on a medium belongs to one process, its *life*, at a time.

A life is a UUID, new at each start, and the time of that start (*birth*).  A node that was given
its name asks for it first: for a moment it says INFO with `claims` set and takes part in nothing.

    claimed here, held there        the holder answers, and this start fails with `NameTaken`
    claimed here and there          the earlier one gets it
    held there, fresh here          this one stops: it was heard too late that the name is taken
    held here and there             the later life has it: the earlier one stops for good

A life is *fresh* in its first moments, while its groups have given its applications nothing.  So a
name that is in use cannot be taken, and one whose process was killed is free at once, whatever
others still think of it.  Two lives that both hold a name come about where the first one could not
answer: it was stopped, or cut off.  The second replaced it on purpose, so the first gives way when
it hears of that; until then others tell their PDUs apart by their lives (`docs/live.md`).

A node that was given no name makes one up.  A member comes back under its name or not at all, so a
node that has a folder keeps there what it was called.  One without a folder has another name at
every start: where its group cannot go on without it, nobody can bring it back, which is said with
the name (`node.membership.reasons`).
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from roundelay.core.engine import MS, SECOND
from roundelay.core.errors import ConfigError, NameTaken
from roundelay.durable import put
from roundelay.node.groups import MEMBER_BYTES_MAX
from roundelay.node.medium.media import Address
from roundelay.node.membership.directory import tag_of
from roundelay.wire.control import Info

QUESTIONS: Final = 16
"""How often a name is asked for, however long that takes on a busy machine.  With two answers to
each, one gets in at a loss of 30 % in one case of 10 million."""
CLAIM_EVERY_NS: Final = 20 * MS
"""So that a holder on a busy machine has 0.3 s to get its turn."""
ANSWERS: Final = 2
"""Copies of each answer."""
FRESH_NS: Final = 2 * SECOND
"""How long a life that has done nothing yet gives way to an earlier one."""
ECHO_NS: Final = 20 * MS
"""A dead one may still be heard, of late datagrams.  Who speaks again after this time is alive."""
ANSWER: Final = "answer"
YIELD: Final = "yield"
NOTHING: Final = ""
NAME: Final = "name"
"""File in the folder of a node."""
LOOKS_MADE_UP: Final = re.compile(r".+-[0-9a-f]{6}")


class Identity:
    """The life of one node, and what its namesakes mean for it."""

    def __init__(self, name: str, given: bool) -> None:
        self.name = name
        self.uuid = os.urandom(16)
        self.tag = tag_of(self.uuid)
        """What our PDUs carry of it."""
        self.birth = time.time_ns()
        self.claims = given
        """The name is not ours yet.  One that was made up need not be asked for, unless it is kept
        in a folder: that may have been copied."""
        self.rival: NameTaken | None = None
        """Why we cannot have the name, or not any more."""
        self.fresh = given
        """Nothing was done under the name yet."""
        self._fresh_until = 0
        self._heard = 0  # when an earlier life was first heard of
        self._contested = asyncio.Event()

    async def claim(self, say: Callable[[], None]) -> None:
        """Ask for the name, by `say`, until it is certain that nobody answers; or NameTaken."""
        for _ in range(QUESTIONS if self.claims else 0):
            say()
            try:
                async with asyncio.timeout(CLAIM_EVERY_NS / SECOND):
                    await self._contested.wait()
            except TimeoutError:
                continue
            assert self.rival is not None
            raise self.rival
        self.claims = False
        self._fresh_until = time.monotonic_ns() + FRESH_NS

    def look(self, gave: bool) -> None:
        """Note whether our groups have given their applications anything."""
        if not self.claims and (gave or time.monotonic_ns() > self._fresh_until):
            self.fresh = False

    def meet(self, other: Info, address: Address) -> str:
        """Another life with our name said INFO: what to do about it."""
        earlier = (other.birth, other.uuid) < (self.birth, self.uuid)
        where = f"{address[0]}:{address[1]}"
        if self.claims:
            if other.claims and not earlier:
                return ANSWER
            self.rival = NameTaken(self.name, where)
            self._contested.set()
            return NOTHING
        if other.claims or (other.fresh and not (self.fresh and earlier)):
            return ANSWER
        if self.fresh:
            now = time.monotonic_ns()
            if not self._heard:
                self._heard = now
                return ANSWER
            if now - self._heard < ECHO_NS:
                return NOTHING
            self.rival = NameTaken(self.name, where)
            return YIELD
        if earlier:
            return ANSWER
        self.rival = NameTaken(self.name, where, replaced=True)
        return YIELD


def made_up_name(folder: Path | None) -> str:
    """A name that nobody else has: the one that is kept in `folder`, or a new one."""
    name = f"{socket.gethostname()[:32]}-{secrets.token_hex(3)}"
    if folder is None:
        return name
    try:
        kept = (folder / NAME).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        kept = ""
    if LOOKS_MADE_UP.fullmatch(kept) and len(kept.encode()) <= MEMBER_BYTES_MAX:
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / NAME, f"{name}\n".encode())
    except OSError as error:
        why = f"a folder that can be made and written ({error.strerror})"
        raise ConfigError("dir", folder, why) from None
    return name


def looks_made_up(name: str) -> bool:
    """
    >>> looks_made_up("db7-09af3c"), looks_made_up("ann")
    (True, False)
    """
    return LOOKS_MADE_UP.fullmatch(name) is not None
