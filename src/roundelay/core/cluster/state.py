"""What a member of a cluster knows: where everybody stands, and the logs in three stretches.

Per source j there is a receipt log RL_j = ARL_j ∥ PRL_j ∥ RRL_j: acknowledged, pre-acknowledged,
received.  The first stretch is delivered and gone; `prl[j]` and `rrl[j]` are the other two.
``al[j][k]`` is the next number that k is known to expect from j: everything of j below it is at k.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import ClassVar, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.cluster.config import EAGER, ClusterConfig
from roundelay.core.cluster.pdu import PO_KINDS, Dt, Kinds
from roundelay.core.engine import ACKNOWLEDGED, EVERYONE, NEVER, ONLY_LINE, Delivery, Engine, Pdu
from roundelay.core.errors import ConfigError, InvariantBroken

ISS: Final = 1
"""The first sequence number of every member."""


class Carried(Struct, gc=False):
    """Who has been heard to acknowledge one data PDU, by PDUs that reached all who must know.

    A *carrier* of p (TR-4) is a PDU of a destination of p that acknowledges p and goes to every
    member of `need` = destinations and source of p.
    """

    need: int
    missing: int  # destinations no carrier has come from
    firsts: dict[int, int]  # first carrier of each: its sequence number


class ClusterState(Engine):
    """Fields of one member; the papers' names are in the comments."""

    __slots__ = (
        "ack_due", "al", "blocked", "bufs", "capacity", "carried", "config", "debts", "done",
        "epoch", "everyone", "everyone_mask", "gap_due", "gaps", "heard", "index", "known",
        "last_poll", "last_vec", "missed", "n", "owed_now", "pal", "position", "preq", "prl",
        "pseq", "queue", "ranks", "resent", "rng", "rrl", "rst", "rst_due", "rst_tries", "seq",
        "shares", "sl", "stat_due", "stopped", "suspected", "treq", "unaccepted", "unheard", "vecs",
        "waited", "waiting_delivery",
    )  # fmt: skip

    KINDS: ClassVar[Kinds] = PO_KINDS
    """The PDUs this member speaks."""

    position: int

    def __init__(self, me: int, group: tuple[int, ...], config: ClusterConfig, rng: Random) -> None:
        if me not in group:
            raise ConfigError("me", me, f"one of the group's members {group}")
        config.check(len(group))
        super().__init__(me, tuple(sorted(group)))
        self.config = config
        self.rng = rng
        self.epoch = 0  # incarnation of the cluster (TR-13)
        self.position = 0  # of the next delivery, where there is a total order
        self.queue: deque[tuple[Bundle, int]] = deque()  # submitted, not sent; with destinations
        self.reset_state()

    def reset_state(self) -> None:
        """Everything as at the start of an epoch, with the roster that `group` is."""
        n = len(self.group)
        self.n = n
        self.ranks = {member: rank for rank, member in enumerate(self.group)}
        self.index = self.ranks[self.me]  # i: our own rank
        self.everyone = range(n)
        self.everyone_mask = (1 << n) - 1
        self.capacity = self.config.buffers or 64 * n * n
        self.seq = ISS  # SEQ, TSEQ
        self.pseq = [ISS] * n  # PSEQ_j; SPO only
        self.treq = [ISS] * n  # REQ_j, TREQ_j
        self.preq = self.treq  # PREQ_j; the same thing unless destinations are selective
        self.al = [[ISS] * n for _ in range(n)]  # AL_jk
        self.pal = [[ISS] * n for _ in range(n)]  # PAL_jk
        self.known = [ISS] * n  # what STATs say of our PDUs; for pruning only
        self.bufs = [self.capacity] * n  # F_j, BUF_j
        self.sl: dict[int, Dt] = {}  # SL_i: own PDUs somebody may still ask for
        self.unaccepted: dict[int, int] = {}  # own data PDUs → destinations, until all have them
        self.rrl: list[deque[Dt]] = [deque() for _ in self.everyone]
        self.prl: list[deque[Dt]] = [deque() for _ in self.everyone]
        self.blocked: list[dict[int, Dt]] = [{} for _ in self.everyone]
        self.waiting_delivery = 0  # data PDUs in rrl and prl, whatever the order of release
        # Obligations.
        self.debts: dict[tuple[int, int, int], int] = {}
        self.carried: dict[tuple[int, int], Carried] = {}
        self.owed_now: list[int] = []
        # Repair: per source [partial numbers known below, total number needed, due].
        self.gaps: dict[int, list[int]] = {}
        self.resent: dict[int, int] = {}
        self.heard = [0] * n
        self.missed = [0] * n
        self.suspected = 0
        self.last_poll = -1
        self.unheard = self.everyone_mask  # who has heard nothing of us since it polled us last
        self.waited: set[tuple[int, int]] = set()  # what waited when we last looked (TR-7)
        # Opening and resets.
        self.stopped = False
        self.rst = -1  # epoch being agreed on
        self.rst_tries = 0
        self.vecs: dict[int, tuple[int, ...]] = {}
        self.done = 0
        self.last_vec: tuple[int, ...] = ()
        self.ack_due = self.stat_due = self.gap_due = self.rst_due = NEVER
        # Each source has the same share: of data, and of all PDUs.
        self.shares = (self.flight() // n, self.receipts() // n)

    # -- helpers ---------------------------------------------------------------------------

    def send_all(self, pdu: Pdu) -> None:
        self.out.sends.append((EVERYONE, pdu, ONLY_LINE))
        self.unheard = 0

    def send_to(self, rank: int, pdu: Pdu) -> None:
        self.out.sends.append((self.group[rank], pdu, ONLY_LINE))
        self.unheard &= ~(1 << rank)

    def free(self) -> int:
        """TR-12: buffers left."""
        blocked = sum(map(len, self.blocked))
        return max(0, self.capacity - blocked - self.waiting_delivery - len(self.sl))

    def destinations(self, pdu: Dt) -> int:
        """The members a PDU is for; everybody, unless a protocol is selective."""
        return self.everyone_mask

    def place(self, pdu: Dt, k: int) -> int:
        """The partial number of a PDU for member k: its number among those meant for it."""
        return pdu.seq

    def note_vector(self, pdu: Dt) -> None:
        """PO-4, SPO-A2: what an accepted PDU says of its sender.

        TR-2: it is its sender's acknowledgement of itself.  TR-3: what we accept we know of.
        """
        j = pdu.src
        read_vector(pdu, self.al)
        self.treq[j] = self.al[j][self.index] = pdu.seq + 1
        self.bufs[j] = pdu.buf

    def note_preacknowledged(self, pdu: Dt) -> None:
        """PO-6, TO-4: what a PDU that everybody has acknowledges is known by everybody."""
        read_vector(pdu, self.pal)

    def hand_over(self, pdu: Dt, stage: str, position: int = -1) -> None:
        source = self.group[pdu.src]
        self.out.deliveries.append(Delivery(position, source, pdu.seq, pdu.bundle, stage))

    def hand_over_next(self, pdu: Dt) -> None:
        """At the next place of the total order."""
        self.hand_over(pdu, ACKNOWLEDGED, self.position)
        self.position += len(pdu.bundle)

    def busy(self) -> bool:
        """TR-7: whether something here waits for others."""
        return bool(self.waiting_delivery or self.queue or any(self.blocked))

    def in_logs(self) -> list[Dt]:
        """The receipt log: everything accepted that is not through."""
        return [pdu for log in (*self.prl, *self.rrl) for pdu in log]

    def pending(self) -> set[tuple[int, int]]:
        """Which PDUs, by (source, number), wait for others."""
        waiting = {(pdu.src, pdu.seq) for pdu in self.in_logs() if pdu.bundle.sizes}
        waiting.update((j, seq) for j, early in enumerate(self.blocked) for seq in early)
        return waiting

    @property
    def takes_more(self) -> bool:
        return not self.queue

    # -- bounds ----------------------------------------------------------------------------

    def flight(self) -> int:
        """PDUs that all members together can have under way.

        Per data PDU every member sends two NULLs, or n under the eager policy.
        """
        nulls = self.n if self.config.policy == EAGER else 2
        return self.n * self.config.window * (nulls * self.n + 1)

    def probes(self) -> int:
        """Those that only make others speak."""
        return 0

    def receipts(self) -> int:
        """The receipt log holds the NULLs of the data before and after, too."""
        return 3 * self.flight() + self.n * self.probes()

    def bounds(self) -> dict[str, tuple[int, int]]:
        config, flight = self.config, self.flight()
        return {
            "queue": (len(self.queue), config.own_limit + config.window),  # a reset gives some back
            "sl": (len(self.sl), flight + self.probes()),
            "blocked": (sum(map(len, self.blocked)), self.capacity),
            "receipt": (len(self.in_logs()), self.receipts()),
            "debts": (len(self.debts), 2 * flight),
            "carried": (len(self.carried), flight),
        }

    def log_length(self, src: int) -> int:
        """At least as many PDUs of `src` as the receipt log has."""
        return len(self.rrl[src]) + len(self.prl[src])

    def crowded(self, src: int) -> bool:
        """I6: whether there is no room left for what a correct member may have under way here.

        A member that goes on without waiting for anybody would fill the logs of all others.
        """
        data, everything = self.shares
        if self.log_length(src) < data:
            return False
        held = [pdu for pdu in self.in_logs() if pdu.src == src]
        return len(held) >= everything or sum(bool(pdu.bundle.sizes) for pdu in held) >= data

    # -- invariants ------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """PAL ≤ AL ≤ TREQ ≤ SEQ, the logs lie between these marks, and every timer runs."""
        self.check_marks()
        if self.deadline > min(self.ack_due, self.gap_due, self.stat_due, self.rst_due):
            raise InvariantBroken(f"a timer is due before the deadline {self.deadline}")
        if self.stopped:
            return  # what is left in the logs is the owner's to deal with
        if self.rst >= 0:
            if self.rst <= self.epoch or self.index not in self.vecs or self.rst_due >= NEVER:
                raise InvariantBroken(f"agrees on epoch {self.rst} in epoch {self.epoch}")
            return
        self.check_logs()
        if bool(self.debts) != (self.ack_due < NEVER):
            raise InvariantBroken(f"{len(self.debts)} debts, due at {self.ack_due}")
        for j, gap in self.gaps.items():
            if gap[2] < self.gap_due:
                raise InvariantBroken(f"the gap of member {j} is due before its timer")

    def check_marks(self) -> None:
        """What we know of others is not more than there is."""
        for j, expected in enumerate(self.treq):
            al, pal = self.al[j], self.pal[j]
            if not expected == al[self.index] >= max(al) or self.preq[j] > expected:
                raise InvariantBroken(f"expects {expected} of member {j}, AL is {al}")
            if any(known > number for known, number in zip(pal, al, strict=True)):
                raise InvariantBroken(f"of member {j} PAL {pal} is above AL {al}")
        if self.treq[self.index] > self.seq:
            raise InvariantBroken(f"has accepted {self.treq[self.index]} of its own {self.seq}")
        for name, numbers in (("SL", self.sl), ("the window", self.unaccepted)):
            if numbers and not ISS <= next(iter(numbers)) <= next(reversed(numbers)) < self.seq:
                raise InvariantBroken(f"{name} has {[*numbers]}, the next one is {self.seq}")
        if len(self.unaccepted) > self.config.window:
            raise InvariantBroken(f"{len(self.unaccepted)} data PDUs are under way")
        if not self.resent.keys() <= self.sl.keys():
            raise InvariantBroken("a PDU was sent again that is not in SL")

    def check_logs(self) -> None:
        """PRL, then RRL, then what is expected, then what came early, of each source."""
        for j, expected in enumerate(self.treq):
            marks = [log[end].seq for log in (self.prl[j], self.rrl[j]) if log for end in (0, -1)]
            if [*marks, expected - 1] != sorted([*marks, expected - 1]):
                raise InvariantBroken(f"logs {marks} of member {j}, of which {expected} is next")
            if any(seq < expected for seq in self.blocked[j]):
                raise InvariantBroken(f"{[*self.blocked[j]]} of member {j} are not early")
        self.check_waiting(sum(map(len, self.prl)), sum(map(len, self.rrl)))

    def check_waiting(self, preacknowledged: int, received: int) -> None:
        """PRL has data alone, RRL may have NULLs."""
        if not preacknowledged <= self.waiting_delivery <= preacknowledged + received:
            raise InvariantBroken(
                f"{self.waiting_delivery} data PDUs wait, PRL has {preacknowledged} and "
                f"RRL {received} PDUs"
            )


def read_vector(pdu: Dt, table: list[list[int]]) -> None:
    """What `pdu` says of its sender: up to where it has everybody's PDUs, and its own."""
    j = pdu.src
    for k, number in enumerate(pdu.ack):
        if number > table[k][j]:
            table[k][j] = number
    table[j][j] = pdu.seq + 1
