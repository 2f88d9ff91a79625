"""The levels of a group whose roles stand in a file: what `journal` and `wide` groups differ in.

A `journal` group has one level (`node.roles.grsb.levels`).  A `wide` group has the global level,
its networks and the subnets behind broadcasters, of which a member has some
(`node.roles.wide.levels`).
Everything else is the same for both: beginning, files, sending, applications, status.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from roundelay.core.grsb.config import GrsbConfig, Roles
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Archive, Handled
from roundelay.core.selection import Selection
from roundelay.node.roles.member import RoleMember
from roundelay.node.roles.role_file import RoleFile
from roundelay.node.storage.store import GrsbKept


class Levels(Protocol):
    """The levels of one member, and the engine that drives them."""

    member: RoleMember
    engine: Any = None
    """None until the member takes part."""
    kept_class: type[GrsbKept]
    recording: dict[int, Roles]
    """The levels that this member may be a recorder of, and their roles."""
    listens: bool
    """Whether a new user waits until it hears where the group is; else it begins at 0."""
    neighbours: tuple[int, ...] | None
    """The other sites that a multicast reaches; None: everybody."""

    def __init__(self, member: RoleMember) -> None:
        self.member = member

    @staticmethod
    def read_file(path: Path) -> RoleFile:
        """What a file says."""

    def begin(
        self, config: GrsbConfig, now: int, inc: int, stable: GrsbKept | None, wiped: bool,
        archives: Mapping[int, Archive], wanted: Selection,
    ) -> None:  # fmt: skip
        """Make the engine; `archives` are the journals by level."""

    # -- lines -----------------------------------------------------------------------------

    def network_line(self) -> str:
        """The multicast group that this member needs beside the node's medium; empty: none."""

    def from_retransmitter(self, sender: int, line: int) -> bool:
        """Whether what `sender` says there tells where the group is."""

    def of_line(self, line: int) -> int:
        """The level whose PDUs go over `line`."""

    def line_to_acknowledger(self, level: int) -> int:
        """Where a recorder of `level` reaches its acknowledger."""

    # -- what is kept ----------------------------------------------------------------------

    def by_level(self, records: list[Struct]) -> dict[int, list[Struct]]:
        """What the engine wants to be kept."""

    def stored(self, level: int, record: Struct) -> Struct:
        """A record as it stands in the file."""

    def kept_at(self, kept: Any, level: int) -> GrsbKept:
        """The part of what is kept that is of `level`."""

    def name(self, level: int) -> str:
        """What the journal of `level` is called."""

    def progress(self) -> Struct:
        """How far the applications are, with what is about to be delivered."""
        user = self.shown.user
        upto = user.listener.next
        handled = Handled(user.upto, user.units.resume(upto), user.listener.epoch)
        return self.stored(self.user_level, handled)

    # -- what the engine knows -------------------------------------------------------------

    def site(self, level: int) -> GrsbSite:
        """The part of the engine that is the site of `level`."""

    @property
    def shown(self) -> Any:
        """The site, or what looks like one, that this member is shown by and has its user at."""

    @property
    def user(self) -> Any:
        """Where applications are; None: nowhere, or not yet."""
        return None if self.engine is None else self.shown.user

    @property
    def user_level(self) -> int:
        """The level of the user."""

    @property
    def waits(self) -> tuple[int, ...]:
        """Those without whom the group stands still, as far as the engine knows."""

    @property
    def council(self) -> Any:
        """The council member of this site: of the level that has no vote yet, if there is one."""

    @property
    def stuck(self) -> bool:
        """Whether the state that was shown last holds, whatever is heard."""

    def awaited(self, waits: tuple[int, ...]) -> tuple[int, ...]:
        """`waits`, and those whom only the levels let one suspect."""

    def status(self, journals: Mapping[int, Any]) -> dict[str, object]:
        """What `status` shows of the levels beside what all groups have."""
