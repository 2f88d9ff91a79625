"""A `journal` group at a node: the roles that the group's file gives it, driven in real time.

The file (`node.grsb_file`) says who is retransmitter, acknowledger, recorder and user; this node
finds itself in it by its name.  What the engine (`core.grsb.site`) wants is carried out in the
order it asks for: what a council member promised is on disk, and what a recorder stored is in its
journal, before anything is sent.  Broadcasts, acknowledgements and signs of life go over line B
(`node.lines`), everything else over the medium of the node.

How a group begins is in `node.grsb_birth`.  A user begins where the group is when it is first
heard, or where its disk says that it was; what was before comes from recorders (`node.catchup`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import EVERYONE, MS, NEVER, Notice, Pdu
from roundelay.core.errors import ConfigError, GroupClosed, RoundelayError, UsageError
from roundelay.core.events import DELIVER, NO_REF, NOBODY, NOTICE, RECEIVE, SEND, SUBMIT
from roundelay.core.grsb.base import GrsbDelivery, GrsbEffects
from roundelay.core.grsb.checks import beginning
from roundelay.core.grsb.config import Selection
from roundelay.core.grsb.pdu import LINE_A, LINE_B, PollOk
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Handled
from roundelay.node import engines, grsb_tools
from roundelay.node.catchup import CatchUp
from roundelay.node.failpoints import Failpoint
from roundelay.node.groups import GroupSpec
from roundelay.node.grsb_journal import SeatJournal
from roundelay.node.grsb_receipts import RECORDED, Receipts
from roundelay.node.grsb_shown import ShownSeat
from roundelay.node.grsb_tools import MarkedOutbox, as_one, check_unit, how_far, is_unit, wanted_by
from roundelay.node.hosted import TRACE_ROWS
from roundelay.node.outbox import LIMIT_BYTES
from roundelay.node.store import Born, GrsbKept
from roundelay.node.switchboard import UNIT, WHOLE, Application, Batch, Missed
from roundelay.node.tracer import Tracer
from roundelay.wire.codec import encode

if TYPE_CHECKING:
    from roundelay.node.node import Node

LOOK_NS: Final = 250 * MS
"""How often to look who is there."""
ROTATE_BYTES: Final = 4 << 20
BURST_BYTES: Final = 1 << 20
"""What a recorder may send at once: about what a receiver has room for."""


class GrsbSeat(ShownSeat):
    """One `journal` group at one node: its place among the groups, and what is driven."""

    hub = None

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        super().__init__(node, spec, now)
        self.is_user = self.me in self.roles.users
        if self.me in self.roles.recorders and spec.name in {
            one.group for one in node.config.records
        }:
            raise ConfigError("record", spec.name, f"nothing: {node.name} records it by its file")
        bundled = engines.bundle_bytes(node.medium.mtu)
        burst = min(64, max(8, BURST_BYTES // bundled))
        self.config = self.file.config(
            max_payload=max(bundled, engines.LARGEST_MESSAGE), credit=burst, rec_burst=burst
        )
        self.outbox = MarkedOutbox(spec.name, engines.LARGEST_MESSAGE, bundled, LIMIT_BYTES)
        self.trace: Tracer | None = None
        self.traced = 0  # everything below is in the trace, or in that of an earlier life
        self.failpoint = Failpoint.wanted()
        self.receipts = Receipts(self.outbox)
        self.chan_seq = time.time_ns() // 1_000_000 & 0xFFFFFFFF
        self.leaving = False
        self.look_due = now
        if self.failpoint is not None:
            node.log("warning", "group.failpoint", group=spec.name, at=self.failpoint.text)
        if self.kept.born is not None:
            self.enter(self.kept.born, now, wiped=False)

    # -- how it begins ---------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.site.reign.epoch if self.site is not None else -1

    def begin(self, now: int, *, again: bool, wiped: bool) -> None:
        """Members of the council begin at once, a user where it was; a new one has to listen."""
        if self.in_council or again:
            self._open(now, again=again, wiped=wiped)
        else:
            self.say_state("looking for the retransmitter")

    def begin_anew(self, reason: str) -> None:
        self.site = None
        self.outbox.abandon(reason)

    @property
    def kept_of_user(self) -> GrsbKept:
        """The part of what is kept that says how far a user is."""
        return self.kept

    def _begin_here(self, acked: int, epoch: int, now: int) -> None:
        """A user without a past begins where the group is."""
        self.kept.apply(Born(self.history_name, members=self.roster))
        mine = self.kept_of_user
        mine.handled = mine.resume = acked
        mine.epoch = epoch
        self.save()
        self._open(now, again=True, wiped=False)

    def _open(self, now: int, *, again: bool, wiped: bool) -> None:
        """Make the engine; its journals first."""
        self._open_journals()
        self.site = self.make_site(now, self.kept if again else None, wiped)
        self.receipts = Receipts(self.outbox)  # it numbers messages anew
        self._opened()
        if self.is_user:  # nobody else delivers anything
            self.trace = self.node.config.tracer(self.spec.name, self.me)
            self.traced = self.trace.position if self.trace is not None else 0
        self.say_how(now)
        self.node.wake(self)

    def _open_journals(self) -> None:
        if self.me in self.roles.recorders:
            self.journal = SeatJournal(self)
            self.journal.recall(self.kept)

    def _opened(self) -> None:
        """The journals have their engine."""
        if self.journal is not None and self.site is not None:
            self.journal.opened(self.site)

    def make_site(self, now: int, kept: GrsbKept | None, wiped: bool) -> GrsbSite:
        """The engine, with the roles of this member."""
        return GrsbSite(
            self.me, self.roles, self.config, self.node.rng, now,
            inc=self.inc, stable=kept, wiped=wiped,
            archive=self.journal.archive if self.journal is not None else None,
            wanted=self._wanted(),
            base_us=time.time_ns() // 1000 - now // 1000,
        )  # fmt: skip

    # -- applications ----------------------------------------------------------------------

    def join(
        self, application: Application, since: int | None = None, since_time: int = 0,
        history: str = "",
    ) -> None:  # fmt: skip
        """From where the stream is here, or from `since` on: that comes from recorders first."""
        if not getattr(application, "hosts_node", False):
            self._must_be_user()
        if id(application) in self.applications:
            return
        if self.site is not None:
            self.flush(time.monotonic_ns())  # so that the stream is where its deliveries are
        self.applications[id(application)] = application
        self._select()
        application.viewed(self.view())
        if not self.is_user:
            return  # it is there for its other roles, and watches
        if since is not None and (since_time or history or self.position != since):
            self._catch_up(application, since, since_time, history, asked=True)
        self.node.wake(self if self.site is not None else None)

    def _catch_up(
        self, application: Application, since: int, since_time: int = 0, history: str = "",
        asked: bool = False,
    ) -> None:  # fmt: skip
        replays = self.node.recorders.replays
        replays.catch_up(
            self.applications, application, self.spec.name, since, since_time, history, asked
        )

    def fell_behind(self, application: Application, since: int) -> bool:
        """An application did not read for too long: it may catch up."""
        # Whoever sits there in its place would find no room either.
        here = self.applications.get(id(application)) is application
        if here and since >= 0 and self.node.recorders.known(self.spec.name):
            self._catch_up(application, since)
            return True
        return False

    def history(self, since: int) -> Iterator[Batch]:
        """What is kept beside the journals: nothing."""
        return iter(())

    def _wanted(self) -> Selection:
        return wanted_by(self.applications.values())

    def _select(self) -> None:
        site = self.site
        if site is not None and site.user is not None:
            wanted = self._wanted()
            if wanted != site.user.wanted:
                site.select(wanted, time.monotonic_ns())

    def _must_be_user(self) -> None:
        if not self.is_user:
            users = ", ".join(self.file.names(self.roles.users)[:8])
            raise UsageError(
                f"{self.node.name} is no user of {self.spec.name} but its "
                f"{' and '.join(self.role_names)}: go through one of {users}"
            )

    def part(self, application: Application, now: int) -> None:
        found = self.applications.pop(id(application), None)
        if isinstance(found, CatchUp):
            found.stop()
        if found is not None:
            self._select()

    def send(
        self,
        application: Application,
        bundle: Bundle,
        tag: int,
        to: Iterable[str] | None,
        recorders: int = 0,
        unit: bool = False,
    ) -> None:
        """`recorders`: the receipt waits until that many that leave nothing out have it on disk.

        Where there is none, it waits for the group's own mark: all that are not given up have it,
        and one that keeps it whole.  `unit`: the messages take effect together (GR-19).
        """
        self._must_be_user()
        if to is not None:
            raise ConfigError("to", "…", f"no destinations in {self.spec.service} groups")
        if self.closed:
            raise GroupClosed(f"group {self.spec.name}: {self.state}")
        marked = recorders > 0 and len(self.roles.filters) == len(self.roles.recorders)
        if recorders and not marked:
            durability = self.node.recorders.durability
            application = durability.application(application, self.spec.name, recorders)
        due = time.monotonic_ns() + self.node.config.answer_ns
        unit = unit and len(bundle) > 1
        if unit:
            check_unit(bundle, self.config, self.spec.name)
        self.outbox.put(application, bundle, tag, (RECORDED,) if marked else None, due, unit)
        self.node.wake(self if self.site is not None else None)

    @property
    def data(self) -> Self | None:
        """What carries the messages, once it does."""
        return self if self.site is not None else None

    # -- in --------------------------------------------------------------------------------

    def receive(
        self, pdu: Pdu, sender: int, chan_seq: int, now: int, line: int = 0, life: int = 0
    ) -> None:
        if sender >= len(self.roster) or sender == self.me:
            self.node.drop("sender is no other member")
            return
        self.received += 1
        site = self.site
        if site is None:
            begun = beginning(pdu) if self._ours(sender, line) else None
            if begun is not None and now >= self.started_at:
                self._begin_here(*begun, now)
            return
        if self.trace is not None:
            ref = sender << 48 | chan_seq
            self.trace.rows.append((now, self.me, RECEIVE, ref, sender, None))
        site.receive(pdu, sender, now, line)

    def _ours(self, sender: int, line: int) -> bool:
        """Whether it is our retransmitter that says so there."""
        return sender in self.roles.retransmitters

    def relay(self, data: bytes, pdu: Pdu, sender: int, chan_seq: int, now: int, life: int) -> None:
        """Nobody has reason to ask for that."""
        self.node.drop("to be relayed in a group without a hub")

    @property
    def deadline(self) -> int:
        if self.closed:
            return NEVER
        return min(self.look_due, self.site.deadline if self.site is not None else NEVER)

    def on_timer(self, now: int) -> None:
        """Called for the place and for what is driven: harmless when repeated."""
        site = self.site
        if site is not None and site.deadline <= now:
            site.on_timer(now)
            self.node.wake(self)
        if self.look_due <= now:
            self.look_due = now + LOOK_NS
            self._look(now)

    def _look(self, now: int) -> None:
        """Now and then: who is there?"""
        if not self.history_name and not self.closed:
            self._meet(now)
        blocked = self.state.startswith("blocked") or bool(self.awaited())
        if self.site is not None and (self.site.user is None or blocked or not self.up):
            self.say_how(now)  # also since others may have come or gone
        self.stand_in(now)
        present = tuple(name for name in self.roster if self.node.alive(name))
        if present != self.present:
            self.present = present
            self.views += 1
            self.show()

    # -- out -------------------------------------------------------------------------------

    def flush(self, now: int) -> None:
        """Feed the engine, then carry out what it wants, until it wants nothing more."""
        site = self.site
        while site is not None and not self.closed:
            self._feed(site, now)
            if site.deadline <= now:
                site.on_timer(now)
            effects = site.take()
            if not effects:
                break
            self._persist(effects)
            if self.trace is not None:
                self._record(self.trace, effects, now)
            for destination, pdu, line in effects.sends:
                self._transmit(destination, pdu, line)
            for deliveries, gap in grsb_tools.around_gaps(effects):
                self._deliver(deliveries)
                if gap is not None:
                    missed = Missed(self.spec.name, *gap, self.history_name)
                    grsb_tools.tell_missed(self.applications.values(), missed)
            for notice in effects.notices:
                self._notice(notice, now)
            site = self.site  # a notice may have ended it
        if self.trace is not None and len(self.trace.rows) >= TRACE_ROWS:
            self.trace.flush()
        self.outbox.make_room()

    def _feed(self, site: GrsbSite, now: int) -> None:
        """GR-1: one submission is under way; what gathers meanwhile goes together."""
        user, outbox = site.user, self.outbox
        while (
            outbox
            and user is not None
            and user.up
            and user.under_way is None
            and not user.queue
            and now >= self.started_at
        ):
            bundle, marks, one = outbox.gather()
            assert marks is not None
            unit = is_unit(marks)
            if self.trace is not None:
                shown = as_one(bundle) if unit else bundle
                self.trace.rows.append((now, self.me, SUBMIT, self.submitted, NOBODY, shown))
            self.submitted += len(bundle)
            conference, kind = int(marks[0]), int(marks[1])
            try:
                if unit:
                    first = site.submit_unit(list(bundle), now, conference=conference, kind=kind)
                else:
                    first = site.submit(bundle, now, conference=conference, kind=kind)
            except RoundelayError as error:
                outbox.refuse(one, str(error))
            else:
                self.receipts.follow(first, one)

    def _persist(self, effects: GrsbEffects) -> None:
        """Promises and records are on disk before anything of the batch is sent.

        How far a user is, is written before it is told, so that nothing is delivered twice (I4):
        the engine itself would rather tell the last batch again after a crash.  Whoever must not
        miss anything then says where it was (`since`).
        """
        records = effects.persists
        if effects.deliveries:
            records = [record for record in records if not how_far(record)]
        rest = self._recorded_first(records)
        if effects.deliveries:
            rest.append(self._handled())
        if not rest:
            return
        for record in rest:
            self.kept.apply(record)
        if self.store is not None:
            if self.store.size > ROTATE_BYTES:
                self.store.replace(self.kept.records())
            else:
                self.store.write(rest, False)

    def _recorded_first(self, records: list[Struct]) -> list[Struct]:
        """Records go to the journal; returns the rest, as it is to be written."""
        return list(records) if self.journal is None else self.journal.keep(records)

    def _handled(self) -> Struct:
        """How far the applications are, with what is about to be delivered."""
        user = self.site.user if self.site is not None else None
        assert user is not None
        resume = user.units.resume(user.listener.next)
        return Handled(user.upto, resume, user.listener.epoch)

    def _transmit(self, destination: int, pdu: Pdu, line: int) -> None:
        if type(pdu) is PollOk:
            journal = self._journal_at(line)
            told = None if journal is None else journal.durable(pdu.upto)
            if told is None:
                return
            pdu = PollOk(told)
        self.chan_seq = (self.chan_seq + 1) & 0xFFFFFFFF
        data = encode(
            pdu, sender=self.me, group_id=self.id, chan_seq=self.chan_seq, line=line,
            life=self.node.identity.tag,
        )  # fmt: skip
        self.sent += 1
        hint = data[2] << 8 | data[3]
        if destination != EVERYONE:
            self._unicast(destination, data, hint, line)
        else:
            self._multicast(data, hint, line)
        if self.failpoint is not None:
            self.failpoint.sent(hint)

    def _journal_at(self, line: int) -> SeatJournal | None:
        """That of the recorder that speaks on this line."""
        return self.journal

    def _unicast(self, site: int, data: bytes, hint: int, line: int = LINE_A) -> None:
        if line == LINE_B and self.line is not None:
            there = self.line.met.get(self.roster[site])
            if there is not None:
                self.node.send_line(self.line.line, data, hint, there)
                return
        if not self.node.send_member(self.roster[site], data, hint):
            self.node.drop("address of a member not known yet")

    def _multicast(self, data: bytes, hint: int, line: int) -> None:
        if line == LINE_B and self.line is not None:
            self.node.send_line(self.line.line, data, hint)
        else:
            self.node.send_everyone(data, hint)

    def tell_recorded(self) -> None:
        """The journal has got further: the acknowledger need not ask."""
        if self.site is not None:
            self._tell_recorded(self.site, self.site.ways.to(self.site.reign.da))

    def _tell_recorded(self, site: GrsbSite, line: int) -> None:
        if site.recorder is not None and not self.closed and site.reign.da != self.me:
            self._transmit(site.reign.da, PollOk(site.recorder.mark), line)

    def _deliver(self, deliveries: list[GrsbDelivery]) -> None:
        name, roster = self.spec.name, self.roster
        for one in deliveries:
            bundle = one.bundle.marked(one.conference, one.kind)
            unit = UNIT if one.is_unit else WHOLE
            batch = Batch(
                name, one.seq, roster[one.source], one.time * 1000, bundle, unit, self.history_name
            )
            self.delivered += len(bundle.sizes)
            for application in list(self.applications.values()):
                application.deliver(batch)

    # -- notices ---------------------------------------------------------------------------

    def _notice(self, notice: Notice, now: int) -> None:
        kind, info = notice.kind, notice.info
        handler = NOTICES.get(kind)
        if handler is not None:
            handler(self, *info)
        if kind not in QUIET:
            level = "warning" if kind in ALARMING else "info"
            shown = ", ".join(map(str, self.named(kind, info)))[:200]
            self.node.log(level, f"group.{kind}", group=self.spec.name, info=shown)

    def _stable(self, lo: int, hi: int, gseq: int) -> None:
        """GR-5: these messages of ours have their place for good; of a unit, one of its parts."""
        self.receipts.stable(hi, gseq, hi - lo)
        self._settle()

    def _settle(self) -> None:
        user = self.site.user if self.site is not None else None
        self.receipts.settle(user.recorded if user is not None else 0)

    def _recorded(self, mark: int) -> None:
        self._settle()

    def _refused(self, lo: int, hi: int) -> None:
        self.receipts.refused(hi, "the retransmitter has refused it")

    def _down(self) -> None:
        self.up = False
        self.say_how(time.monotonic_ns())

    def _come_up(self) -> None:
        self.up = True
        self.say_how(time.monotonic_ns())

    def _votes(self) -> None:
        self.say_how(time.monotonic_ns())

    def _waits(self, *sites: int) -> None:
        self.say_how(time.monotonic_ns())

    def _broken(self, reason: str, *mute: int) -> None:
        missing = f"; silent: {self.known_as(mute)}" if mute else ""
        self.say_state(f"broken: {reason}{missing}")

    def _reign(self, epoch: int, cr: int, da: int) -> None:
        self.say_how(time.monotonic_ns())

    # -- the trace -------------------------------------------------------------------------

    def _record(self, trace: Tracer, effects: GrsbEffects, now: int) -> None:
        """After the persists and before anybody else can know of it (`roundelay.trace.live`)."""
        me, add = self.me, trace.rows.append
        for i, (destination, pdu, _) in enumerate(effects.sends, 1):
            ref = me << 48 | (self.chan_seq + i) & 0xFFFFFFFF
            add((now, me, SEND, ref, destination, pdu))
        for delivery in effects.deliveries:
            if delivery.is_unit:
                delivery = structs.replace(delivery, bundle=as_one(delivery.bundle))
            if delivery.seq > self.traced:  # not for us, or before our time
                passed = Notice("gap_unavailable", (self.traced, delivery.seq))
                add((now, me, NOTICE, NO_REF, NOBODY, passed))
            if delivery.seq >= self.traced:
                self.traced = delivery.upto
                add((now, me, DELIVER, delivery.seq, delivery.source, delivery))
        for notice in effects.notices:
            add((now, me, NOTICE, NO_REF, NOBODY, notice))
        trace.flush()

    # -- the end ---------------------------------------------------------------------------

    def leave(self, now: int) -> None:
        """Roles are for good: whoever stops is missed, or is away."""

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self.outbox.abandon(reason)
        for application in list(self.applications.values()):
            if isinstance(application, CatchUp):
                application.stop()
        self.stop()
        if self.node.assemblies.get(self.spec.name) is self:
            self.node.closed_group(self)

    def stop(self) -> None:
        """The end: what the applications have been given is noted, and what was acknowledged."""
        site = self.site
        if self.store is not None and site is not None and self.node.fatal is None:
            last = [self._handled()] if site.user is not None else []
            if site.acknowledger is not None and (word := site.acknowledger.last_word()):
                last.append(word)
            self.store.write(last, False)
        self.abandon()

    def abandon(self) -> None:
        """Let go of files and sockets, as a process does that is killed."""
        self.closed = True
        self.node.unregister(self)
        if self.store is not None:
            self.store.close()
            self.store = None
        self._close_journals()
        for lines in (self.node.stand_ins, self.node.second_lines):
            lines.pop(self.spec.name, None)
        if self.line is not None:
            self.line.close()

    def _close_journals(self) -> None:
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def fail(self, reason: str) -> None:
        self.state = f"broken: {reason}"
        self.show()
        self.outbox.abandon(reason)


NOTICES: Final[dict[str, Any]] = {
    "stable": GrsbSeat._stable,
    "recorded": GrsbSeat._recorded,
    "refused": GrsbSeat._refused,
    "down": GrsbSeat._down,
    "up": GrsbSeat._come_up,
    "voting": GrsbSeat._votes,
    "waits": GrsbSeat._waits,
    "broken": GrsbSeat._broken,
    "reign": GrsbSeat._reign,
}
QUIET: Final = frozenset({"stable", "recorded", "missed"})
ALARMING: Final = frozenset({"broken", "gap_unavailable", "retracted", "suspect", "down", "waits"})
