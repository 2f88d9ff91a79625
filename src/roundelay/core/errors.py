"""The errors Roundelay raises, in four families that call for four reactions.

    RoundelayError
    ├── UsageError                the caller's mistake: says what to do, nothing was changed
    │   ├── ConfigError           a parameter outside its allowed values; names the field
    │   ├── QueueFull             a bounded queue has no room; try again later
    │   ├── PayloadTooLarge       a message above `max_payload`; split it or raise the limit
    │   ├── ClusterBroken         a member of the cluster has failed; reopen it without that member
    │   ├── SettingsMismatch      the group has other settings than asked for; join with those
    │   ├── NodeUnreachable       no node answers at an address; start one, or name the right one
    │   ├── NameTaken             another node on the medium has this name; choose another
    │   ├── FolderInUse           another running node keeps its files there; give each its own
    │   ├── NoRecorder            nobody, or too few, record the group; start a recorder
    │   ├── NoSuchPosition        a position of another history of the group, or of its future
    │   └── GroupClosed           the group was left, or its node has stopped
    ├── GroupTrouble              the caller did nothing wrong, the group or the network did
    │   ├── Refused               the message is certainly not delivered
    │   ├── Indeterminate         nobody can say whether it is delivered
    │   ├── ConnectionLost        the node is gone; connect and join again
    │   ├── GroupFailed           the group has failed at this node; join it again once it can work
    │   ├── SlowConsumer          the application did not read; join again from a position
    │   ├── MissingMessages       nobody has these messages any more; read on to go on behind them
    │   ├── LeftOut               the others went on without us: messages may be missing; read on
    │   └── MissingRecords        no recorder has these positions any more; skip them, or ask again
    ├── PeerError                 a peer's malformed input: counted by reason and dropped
    │   └── MalformedPdu
    └── InvariantBroken           our own bug: the site stops rather than go on wrongly

The first two families are raised to the caller, the third never is, the fourth goes through
everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundelay.core.position import Position


class RoundelayError(Exception):
    """Base of everything below."""


class UsageError(RoundelayError, ValueError):
    """The caller asked for something that cannot be done."""


class ConfigError(UsageError):
    """A parameter has a value that is not allowed.

    >>> str(ConfigError("loss", 1.2, "a number from 0 up to, not including, 1"))
    'loss = 1.2 is not allowed: a number from 0 up to, not including, 1'
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} = {value} is not allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class QueueFull(UsageError):
    """A bounded queue is full; nothing was queued."""


class PayloadTooLarge(UsageError):
    """A message is larger than the configured limit; nothing was queued."""


class ClusterBroken(UsageError):
    """A cluster protocol needs every member, and one has failed; nothing was queued."""


class SettingsMismatch(UsageError):
    """The group has other settings than were asked for.

    >>> error = SettingsMismatch("token:orders", "resilience", "2", "1")
    >>> SettingsMismatch.told(f"failed: {error}").agreed
    '1'
    """

    def __init__(self, group: str, option: str, asked: str, agreed: str) -> None:
        super().__init__(
            f"group {group}: {option} = {asked} was asked for, but the group has {option} = "
            f"{agreed}: join with that, or without a wish"
        )
        self.group = group
        self.option = option
        self.asked = asked
        self.agreed = agreed

    @classmethod
    def told(cls, text: str) -> SettingsMismatch | None:
        """What a node has said of it in words, if it did."""
        head, asks, rest = text.partition(" was asked for, but the group has ")
        value, joins, _ = rest.partition(": join with that")
        if not (asks and joins):
            return None
        about, _, wish = head.rpartition(" = ")
        group, _, option = about.rpartition(": ")
        name = group.removeprefix("failed: ").removeprefix("group ")
        return cls(name, option, wish, value.partition(" = ")[2])


class NodeUnreachable(UsageError):
    """No node answers at the address."""


class NameTaken(UsageError):
    """Another node has the name: nothing was joined; or a newer one has it now, and we stop."""

    def __init__(self, name: str, where: str, replaced: bool = False) -> None:
        if replaced:
            text = (
                f"the name {name} belongs to a node that was started later, at {where}, and this "
                "one stops; what it had under way may or may not be delivered. Start it again "
                "with another name, or stop the other one first"
            )
        else:
            text = (
                f"name {name} is taken: a node at {where} has it. Start this one with another "
                "name, or stop that one first"
            )
        super().__init__(text)
        self.name = name
        self.where = where
        self.replaced = replaced
        """We had the name, and a newer process took our place."""


class FolderInUse(UsageError):
    """Another running node keeps its files in the folder; nothing was changed."""

    def __init__(self, folder: str, pid: int) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"dir = {folder} is in use by a running node ({who}): give each node a folder of its "
            "own, or stop that one first"
        )
        self.folder = folder
        self.pid = pid
        """0: it has not said who it is."""


class NoRecorder(UsageError):
    """Fewer recorders of the group are known than have to sync a message; nothing was sent."""

    def __init__(self, group: str, there: int, needed: int) -> None:
        super().__init__(
            f"group {group}: {there} recorders that sync everything are known here, durability = "
            f"recorded wants {needed}: start one with `roundelay node --record {group}`, or "
            "join(…, record=True)"
        )


class NoSuchPosition(UsageError):
    """The group has no such position: `asked` is of another history than `present`, or ahead of it.

    Both are `Position`s: `asked` is where the application is, `present` where the group is.
    """

    def __init__(self, group: str, asked: Position, present: Position, why: str) -> None:
        super().__init__(
            f"group {group}: there is no position {asked} to go on at: {why}, and this one is at "
            f"{present}; join without `since`, or from a position of this history"
        )
        self.group = group
        self.asked = asked
        self.present = present


class GroupTrouble(RoundelayError):
    """The group, the node or the network could not do what was asked."""


class Refused(GroupTrouble):
    """The message is not delivered, and will not be."""


class Indeterminate(GroupTrouble):
    """The message may be delivered or not: nobody here can say."""


class ConnectionLost(GroupTrouble):
    """The connection to the node has ended."""


class GroupFailed(GroupTrouble):
    """The group has failed at this node, for `reason`; others may go on in it."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(
            f"group {group} has failed here: {reason}; join it again when that is mended"
        )
        self.group = group
        self.reason = reason


class SlowConsumer(GroupTrouble):
    """The application did not read for so long that deliveries could not be kept.

    `seq` is the first position that was not kept (None without a total order): join again with
    `since=seq`.
    """

    def __init__(self, group: str, seq: int | None, limit_bytes: int) -> None:
        at = "" if seq is None else f" from position {seq} on"
        super().__init__(
            f"group {group}: {limit_bytes} bytes waited to be read, and later messages{at} were "
            "not kept; read faster, or join again from there"
        )
        self.seq = seq


class MissingMessages(GroupTrouble):
    """Neither recorders nor members have the positions `first` to `last` any more.

    It is raised once, in place of these messages; whoever reads on gets what follows them.  With
    `missing="skip"` nothing is raised, and `group.skipped` counts them.
    """

    def __init__(self, group: str, first: int, last: int) -> None:
        super().__init__(
            f"group {group}: positions {first} to {last} ({last - first + 1} messages) are "
            "missing: neither a recorder nor a member has them any more; read on to go on behind "
            'them, or join with missing="skip"'
        )
        self.group = group
        self.first = first
        self.last = last


class LeftOut(GroupTrouble):
    """The others took this member for dead and went on without it, in a group without positions.

    Messages may be missing: those of roster epoch `epoch` that it had not been given yet, and what
    was broadcast until it was in again.  It is raised once, in their place; whoever reads on gets
    what follows.  With `missing="skip"` nothing is raised.
    """

    def __init__(self, group: str, epoch: int) -> None:
        super().__init__(
            f"group {group}: this member was away, and the others went on without it: messages of "
            f"roster epoch {epoch}, and from then on until it is in again, may be missing; read on "
            'to go on behind them, or join with missing="skip"'
        )
        self.group = group
        self.epoch = epoch


class MissingRecords(GroupTrouble):
    """No recorder that answers has the positions `lo` to `hi - 1`, or only their heads.

    Ask again from `hi` on, or with `missing="skip"`.
    """

    def __init__(self, group: str, lo: int, hi: int, why: str = "") -> None:
        super().__init__(
            f"group {group}: no recorder has positions {lo} to {hi - 1}{why}; replay with "
            'missing="skip" to go on without them'
        )
        self.lo = lo
        self.hi = hi


class GroupClosed(UsageError):
    """The group was left, or its node has stopped; nothing was queued."""


class PeerError(RoundelayError):
    """A peer sent something that cannot be right."""


class MalformedPdu(PeerError):
    """Bytes or fields that no correct peer sends; `reason` is the key it is counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class InvariantBroken(RoundelayError):
    """A state that the protocol excludes.  The site must stop."""
