"""What is known of the other holders, and what that makes safe: commit and prune.

An entry is committed when L transfers of the token from it on are known to be accepted: then L + 1
sites hold it.  It can be forgotten when every member of the list has issued a later stamp.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from roundelay.core.engine import COMMITTED, Delivery
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.lives import OtherLife
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.stable import Committed

if TYPE_CHECKING:
    from roundelay.core.token.site import TokenSite


class Commit:
    """Evidence of who holds what, and the commit mark."""

    __slots__ = (
        "accepted_upto",
        "confirm_by",
        "confirm_ts",
        "have",
        "issues",
        "level",
        "site",
        "transfers",
    )

    def __init__(self, site: TokenSite) -> None:
        self.site = site
        self.level = site.config.resilience  # L
        self.transfers: deque[int] = deque()  # stamps ≥ cnts that moved the token
        self.accepted_upto = -1  # newest stamp whose transfer is known to be accepted
        self.have: dict[int, int] = {}  # highest stamp each member is known to hold
        self.issues: deque[tuple[int, int]] = deque()  # (have[j], j) in rising order, lazily
        self.confirm_ts = -1  # a CONFIRM ahead of our log
        self.confirm_by = -1

    def begin_list(self, members: tuple[int, ...], start_ts: int) -> None:
        """Every member of a new list holds what is below its start."""
        me = self.site.me
        self.accepted_upto = start_ts - 1
        self.confirm_ts = -1
        self.transfers.clear()
        self.have = dict.fromkeys(members, start_ts - 1)
        self.issues = deque((start_ts - 1, member) for member in members if member != me)

    def note_confirmed(self, ts: int, by: int) -> None:
        """Site `by` is known to have accepted the token that stamp `ts` passed to it."""
        self.confirm_ts = -1
        if ts > self.accepted_upto:
            self.accepted_upto = ts
        # Only the newest stamp keeps `issues` in order; an older one is covered by later stamps.
        site = self.site
        if by != site.me and ts == site.log.nts - 1 and self.have[by] < ts:
            self.have[by] = ts
            self.issues.append((ts, by))

    # -- commit ------------------------------------------------------------------------------

    def commit(self) -> None:
        """CM-N15: commit, in timestamp order, what L accepted transfers have made safe.

        A NULL obeys the same rule as a message: committing it early would let `cnts` run over a
        timestamp that the next list gives to a message.  CM-R16: entries below `start_ts` need no
        transfers, since every member of an authorized list holds them.
        """
        site = self.site
        log, token_list, level = site.log, site.token_list, self.level
        if not token_list.authorized:
            return
        upto = log.nts
        if level:
            # The stamp of the L-th accepted transfer from the end, and all before it, are safe.
            transfers, accepted = self.transfers, self.accepted_upto
            known = len(transfers)
            while known and transfers[known - 1] > accepted:
                known -= 1
            upto = transfers[known - level] + 1 if known >= level else 0
            if upto < token_list.start_ts:
                upto = token_list.start_ts
        if upto > log.cnts:
            self.commit_upto(upto)

    def commit_upto(self, upto: int) -> None:
        """The entries below `upto` are part of the agreed log: record them, hand them over."""
        site = self.site
        log, out, me = site.log, site.out, site.me
        entries, persists, deliveries = log.entries, out.persists, out.deliveries
        logged = log.logged
        if logged > log.cnts:
            persists.append(Committed(min(logged, upto)))
        for ts in range(log.cnts, upto):
            entry = entries[ts]
            if ts >= logged:
                persists.append(entry)  # COMMIT
            ack = entry.ack
            if ack.kind:  # DATA
                seq, bundle, s = entry.seq, entry.bundle, ack.s
                log.uncommitted -= 1
                log.seq = seq + len(bundle.sizes)
                kind = Delivery if s != me or site.own.let_go(ack) else OtherLife
                deliveries.append(kind(seq, s, ack.n, bundle, COMMITTED))
        log.cnts = upto
        if upto > logged:
            log.logged = upto
        transfers = self.transfers
        while transfers and transfers[0] < upto:
            transfers.popleft()

    def prune(self) -> None:
        """CM-N20: forget what every list member holds and has seen committed, less the history."""
        issues, have, log = self.issues, self.have, self.site.log
        floor = log.cnts
        while issues:
            held, member = issues[0]
            if have[member] == held:
                if held < floor:
                    floor = held + 1
                break
            issues.popleft()  # that site has been heard to hold more since
        if floor > log.pruned:
            log.forget(floor)

    def check_invariants(self) -> None:
        """In a list: nobody is known to hold what is not stamped."""
        site = self.site
        if site.phase != NORMAL:
            return  # what was known of the list before is void
        nts = site.log.nts
        transfers = self.transfers
        if transfers and not site.log.cnts <= transfers[0] <= transfers[-1] < nts:
            raise InvariantBroken(f"transfers {list(transfers)} are not in cnts … nts-1")
        if self.accepted_upto >= nts:
            raise InvariantBroken(f"the transfer {self.accepted_upto} is accepted, nts is {nts}")
        if self.issues and self.issues[-1][0] >= nts:
            raise InvariantBroken(f"{self.issues[-1]} holds more than there is: nts is {nts}")
        if 0 <= self.confirm_ts < nts:
            raise InvariantBroken(f"the confirmation of {self.confirm_ts} waits, nts is {nts}")
