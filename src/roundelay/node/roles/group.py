"""A group whose roles stand in a file, at a node: `journal` and `wide` groups.

The file says who is retransmitter, acknowledger, recorder and user; this node finds itself in it by
its name.  A group is made of parts:

- `member`: the engine, and what `journal` and `wide` groups differ in (`node.roles.member`);
- `persistence`: what is kept on disk (`node.roles.persistence`, `node.roles.journal`);
- `lines`: how PDUs leave (`node.roles.lines`);
- `bootstrap`: how the group begins (`node.roles.bootstrap`);
- `outbox` and `receipts`: what applications send (`node.roles.outgoing`);
- `status_view`: what is shown (`node.roles.status`).

What the engine wants is carried out in the order it asks for: what a council member promised is on
disk, and what a recorder stored is in its journal, before anything is sent.  A user begins where
the group is when it is first heard, or where its disk says that it was; what was before comes from
recorders (`node.recording.handover`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import structs

from roundelay.core import notices
from roundelay.core.engine import MS, NEVER, Effects, Notice, Pdu
from roundelay.core.errors import ConfigError, GroupClosed, RoundelayError, UsageError
from roundelay.core.families import GRSB, WIDE
from roundelay.core.grsb.base import GrsbDelivery, deliveries_of
from roundelay.core.grsb.checks import beginning
from roundelay.core.grsb.pdu import PollOk
from roundelay.core.grsb.stable import Handled
from roundelay.core.grsb.user import CONFERENCES_MAX
from roundelay.core.position import LIVE, Since
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.core.wide.stable import LOCAL
from roundelay.node.driver import engines
from roundelay.node.driver.engine_driver import EngineDriver
from roundelay.node.driver.outbox import LIMIT_BYTES
from roundelay.node.group_host import GroupHost
from roundelay.node.groups import GroupSpec, check_roles
from roundelay.node.membership.settings import check_none
from roundelay.node.node_api import UNIT, WHOLE, Batch, Missed, Send, Subscriber, View
from roundelay.node.recording.handover import CatchUp, application_of
from roundelay.node.roles.bootstrap import Bootstrap
from roundelay.node.roles.journal import RecorderJournal
from roundelay.node.roles.lines import Lines
from roundelay.node.roles.member import RoleMember
from roundelay.node.roles.outgoing import MarkedOutbox, Marks, Receipts, as_one, check_unit
from roundelay.node.roles.persistence import Persistence
from roundelay.node.roles.role_file import read_file
from roundelay.node.roles.status import StatusView
from roundelay.node.roles.wide.member import WideMember
from roundelay.node.storage.store import Born
from roundelay.wire.control import Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

MEMBERS: Final[dict[str, type[RoleMember]]] = {GRSB: RoleMember, WIDE: WideMember}
LOOK_NS: Final = 250 * MS
"""How often to look who is there."""
BURST_BYTES: Final = 1 << 20
"""What a recorder may send at once: about what a receiver has room for."""
NO_CONFERENCE: Final = 0xFFFFFFFF
"""What a node wants on behalf of nobody: a conference that is not used."""


class RoleGroup(GroupHost):
    """One group at one node: its place among the groups, and what is driven."""

    hub = None
    outbox: MarkedOutbox
    roster: tuple[str, ...] = ()

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        self.node = node
        self.spec = check_roles(spec)
        kind = MEMBERS[spec.family.name]
        self.member = kind(node, spec, read_file(Path(spec.config), kind.parse_file))
        self.roster = self.member.roster
        self.persistence = Persistence(self.member, self.tell_recorded)
        self.persistence.check_members()
        self.lines = Lines(self.member, self.persistence)
        self.applications: dict[int, Subscriber] = {}
        replays = node.recorders.replays
        self._catch_up = partial(replays.catch_up, self.applications, spec.name)
        self.driver: EngineDriver | None = None
        self.seen = 0
        """Everything below is in the trace, or in that of an earlier life."""
        self.delivered = 0
        self.look_due = now
        roles, me, file = self.member.roles, self.member.me, self.member.file
        if me in roles.recorders and spec.name in {record.group for record in node.config.records}:
            raise ConfigError("record", spec.name, f"nothing: {node.name} records it by its file")
        bundled = engines.bundle_bytes(node.medium.mtu)
        burst = min(64, max(8, BURST_BYTES // bundled))
        self.config = file.config(
            max_payload=max(bundled, engines.LARGEST_MESSAGE), credit=burst, rec_burst=burst
        )
        self.outbox = MarkedOutbox(spec.name, engines.LARGEST_MESSAGE, bundled, LIMIT_BYTES)
        self.receipts = Receipts(self.outbox)
        self.bootstrap = Bootstrap(self, now)
        self.status_view = StatusView(self)
        if (born := self.persistence.kept.born) is not None:
            self.bootstrap.enter(born, now, wiped=False)

    @property
    def id(self) -> int:
        """Of our datagrams; 0: no history yet."""
        return self.lines.group_id

    @property
    def lineage(self) -> str:
        """The name of the history that the group is in; empty: none yet."""
        return self.bootstrap.history

    @property
    def position(self) -> int:
        """The next position to be delivered; -1: not known."""
        user = self.member.user
        return -1 if user is None else user.listener.next

    @property
    def data(self) -> Self | None:
        """What carries the messages, once it does."""
        return self if self.member.engine is not None else None

    @property
    def journal(self) -> RecorderJournal | None:
        """The one that applications are given replays of."""
        return self.persistence.journals.get(LOCAL)

    def agree(self, wishes: GroupSpec) -> None:
        check_none(wishes)

    def on_tick(self, now: int) -> None:
        super().on_tick(now)
        line = self.lines.second
        if line is not None and line.watch is not None:
            self.node.faults.guard_aside("line B", line.watch.look, now)

    # -- how it begins ---------------------------------------------------------------------

    def begin(self, now: int, *, again: bool, wiped: bool) -> None:
        """Members of the council begin at once, a user where it was; a new one has to listen."""
        self.lines.open_network()
        if not self.member.listens:
            self._begin_as_user(now)
        elif self.member.in_council or again:
            self._open(now, again=again, wiped=wiped)
        else:
            self.status_view.say("looking for the retransmitter")

    def _begin_as_user(self, now: int) -> None:
        self.persistence.kept.apply(Born(self.lineage, members=self.member.roster))
        self.persistence.save()
        self._open(now, again=True, wiped=False)

    def _open(self, now: int, *, again: bool, wiped: bool) -> None:
        """Make the engine; its journals first."""
        persistence = self.persistence
        persistence.open_journals(self.lineage)
        archives = {level: journal.archive for level, journal in persistence.journals.items()}
        self.member.engine = self.member.make_engine(
            self.config,
            now,
            archives,
            base_us=time.time_ns() // 1000 - now // 1000,
            inc=self.bootstrap.inc,
            stable=persistence.kept if again else None,
            wiped=wiped,
            selection=self._selection(),
        )
        self.receipts = Receipts(self.outbox)  # it numbers messages anew
        persistence.opened()
        engine, me = self.member.engine, self.member.me
        trace = None
        if self.member.is_user:  # nobody else delivers anything
            trace = self.node.config.tracer(self.spec.name, me)
            self.seen = trace.position if trace is not None else 0
        before = self.driver
        self.driver = EngineDriver(engine, me, self, self.lines, persistence.keep, trace)
        if before is not None:
            self.driver.submitted, self.driver.received = before.submitted, before.received
        self.status_view.say_how(now)
        self.node.wake(self)

    # -- applications ----------------------------------------------------------------------

    def join(self, application: Subscriber, since: Since) -> None:
        """From where the stream is here, or from `since` on: that comes from recorders first."""
        if not application.hosts_node:
            self._must_be_user()
        if id(application) in self.applications:
            return
        if self.member.engine is not None:
            self.carry_out(time.monotonic_ns())  # so that the stream is where its deliveries are
        self.applications[id(application)] = application
        self._select()
        application.viewed(self.view())
        if not self.member.is_user:
            return  # it is there for its other roles, and watches
        if since not in (LIVE, Since(self.position)):
            self._catch_up(application, since, asked=True)
        self.node.wake(self.data)

    def _selection(self) -> Selection:
        """GR-16: what the stream must bring so that every application gets what it chose."""
        chosen: set[int] = set()
        for application in self.applications.values():
            conferences = application_of(application).conferences
            if not conferences:
                return EVERYTHING
            chosen |= conferences
        if len(chosen) > CONFERENCES_MAX:
            return EVERYTHING
        return Selection(frozenset(chosen or {NO_CONFERENCE}))

    def _select(self) -> None:
        user = self.member.user
        if user is not None and (selection := self._selection()) != user.selection:
            self.member.engine.select(selection, time.monotonic_ns())

    def _must_be_user(self) -> None:
        member = self.member
        if not member.is_user:
            users = ", ".join(member.file.names(member.roles.users)[:8])
            raise UsageError(
                f"{self.node.name} is no user of {self.spec.name} but its "
                f"{' and '.join(member.role_names)}: go through one of {users}"
            )

    def part(self, application: Subscriber, now: int) -> None:
        """The application leaves."""
        joined = self.applications.pop(id(application), None)
        if isinstance(joined, CatchUp):
            joined.stop()
        if joined is not None:
            self._select()

    def send(self, application: Subscriber, send: Send) -> None:
        """`recorders`: the receipt waits until that many that leave nothing out have it on disk.

        Where there is none, it waits for the group's own mark: all that are not given up have it,
        and one that keeps it whole.  `unit`: the messages take effect together (GR-19).
        """
        self._must_be_user()
        if send.to is not None:
            raise ConfigError("to", "…", f"no destinations in {self.spec.service} groups")
        if self.closed:
            raise GroupClosed(f"group {self.spec.name}: {self.status_view.state}")
        roles = self.member.roles
        marked = send.recorders > 0 and len(roles.filters) == len(roles.recorders)
        if send.recorders and not marked:
            durability = self.node.recorders.durability
            application = durability.awaited(application, self.spec.name, send.recorders)
        due = time.monotonic_ns() + self.node.config.answer_ns
        unit = send.unit and len(send.bundle) > 1
        if unit:
            check_unit(send.bundle, self.config, self.spec.name)
        self.outbox.put_marked(application, send.bundle, send.tag, due, marked, unit)
        self.node.wake(self.data)

    def open_units(self) -> set[tuple[str, int]]:
        """Sender and conference of the units that the member has the beginning of."""
        user, roster = self.member.user, self.member.roster
        units = () if user is None else user.units.open
        return {(roster[sender], conference) for sender, conference in units}

    # -- what is known ---------------------------------------------------------------------

    def info(self) -> GroupInfo:
        return self.bootstrap.info()

    def heard(self, info: Info, now: int) -> None:
        self.bootstrap.heard(info, now)

    def told(self, word: Ask | Start, now: int) -> None:
        self.bootstrap.told(word, now)

    def view(self) -> View:
        return self.status_view.view()

    def works(self) -> bool:
        return self.member.engine is not None and self.status_view.up

    def trouble(self) -> str:
        return self.status_view.trouble()

    def about_member(self, place: int) -> dict[str, object]:
        return {"roles": self.member.file.titles[place]}

    def status(self) -> dict[str, object]:
        return self.status_view.status()

    # -- in --------------------------------------------------------------------------------

    def receive(
        self, pdu: Pdu, sender: int, chan_seq: int, now: int, line: int = 0, life: int = 0
    ) -> None:
        """A PDU of this group arrived, decoded."""
        if self.member.engine is not None and self.driver is not None:
            self.driver.receive(pdu, sender, chan_seq, now, line, life)
        elif self.lines.admits(sender) and self.member.from_retransmitter(sender, line):
            begun = beginning(pdu)
            if begun is not None and now >= self.bootstrap.started_at:
                acked, epoch = begun  # a user without a past begins where the group is
                self.persistence.kept.levels[LOCAL].handled = Handled(acked, acked, epoch)
                self._begin_as_user(now)

    @property
    def deadline(self) -> int:
        if self.closed:
            return NEVER
        engine = self.member.engine
        return self.look_due if engine is None else min(self.look_due, engine.deadline)

    def on_timer(self, now: int) -> None:
        """Called for the place and for what is driven: harmless when repeated."""
        engine = self.member.engine
        if engine is not None and engine.deadline <= now:
            engine.on_timer(now)
            self.node.wake(self)
        if self.look_due <= now:
            self.look_due = now + LOOK_NS
            if not self.lineage and not self.closed:
                self.bootstrap.meet(now)
            self.status_view.look(now)
            engine = self.member.engine
            self.lines.stand_in(None if engine is None else self.member.shown.ways, now)

    # -- out -------------------------------------------------------------------------------

    def carry_out(self, now: int) -> None:
        """Carry out what the engine wants."""
        if self.member.engine is not None and self.driver is not None:
            self.driver.carry_out(now)
        self.outbox.make_room()

    def feed(self, now: int) -> None:
        """GR-1: one submission is under way; what gathers meanwhile goes together."""
        driver, user, outbox = self.driver, self.member.user, self.outbox
        assert driver is not None
        engine = self.member.engine
        while (
            outbox
            and user is not None
            and user.up
            and user.under_way is None
            and not user.queue
            and now >= self.bootstrap.started_at
        ):
            underway = outbox.gather()
            bundle, marks = underway.bundle, underway.to
            assert isinstance(marks, Marks)
            if driver.trace is not None:
                shown = as_one(bundle) if marks.unit else bundle
                driver.record_submission(driver.trace, shown, now)
            driver.submitted += len(bundle)
            mark = {"conference": marks.conference, "kind": marks.kind}
            try:
                if marks.unit:
                    first = engine.submit_unit(list(bundle), now, **mark)
                else:
                    first = engine.submit(bundle, now, **mark)
            except RoundelayError as error:
                outbox.refuse(underway, str(error))
            else:
                self.receipts.follow(first, underway)

    def tell_recorded(self, level: int) -> None:
        """The journal of `level` has got further: the acknowledger need not ask."""
        if self.member.engine is None or self.closed:
            return
        site = self.member.sites[level]
        if site.recorder is not None and site.reign.da != self.member.me:
            line = self.member.line_to_acknowledger(level)
            self.lines.transmit(site.reign.da, PollOk(site.recorder.mark), line)

    def hand_over(self, effects: Effects, now: int) -> None:
        """What is delivered, with what no recorder has and never will in its place."""
        rest = deliveries_of(effects)
        for notice in effects.notices:
            if isinstance(notice, notices.NeverRecorded):
                before = [delivery for delivery in rest if delivery.seq < notice.lo]
                self._deliver(before)
                missed = Missed(self.spec.name, notice.lo, notice.hi, self.lineage)
                for application in list(self.applications.values()):
                    # Who is catching up comes to it in its own time.
                    if not isinstance(application, CatchUp) or application.live:
                        application.missed(missed)
                rest = rest[len(before) :]
        self._deliver(rest)
        for notice in effects.notices:
            self._notice(notice)

    def traced(self, deliveries: list[Any]) -> Iterator[GrsbDelivery | Notice]:
        """All of a unit is one message, and what is passed over is said."""
        for delivery in deliveries:
            if delivery.seq > self.seen:  # not for us, or before our time
                yield notices.GapUnavailable(self.seen, delivery.seq)
            if delivery.seq >= self.seen:
                self.seen = delivery.upto
                if delivery.is_unit:
                    delivery = structs.replace(delivery, bundle=as_one(delivery.bundle))
                yield delivery

    def _deliver(self, deliveries: list[GrsbDelivery]) -> None:
        name, roster, history = self.spec.name, self.member.roster, self.lineage
        for delivery in deliveries:
            bundle = delivery.bundle.marked(delivery.conference, delivery.kind)
            unit = UNIT if delivery.is_unit else WHOLE
            sender, time_ns = roster[delivery.source], delivery.time * 1000
            batch = Batch(name, delivery.seq, sender, time_ns, bundle, unit, history)
            self.delivered += len(bundle.sizes)
            for application in list(self.applications.values()):
                application.deliver(batch)

    # -- notices ---------------------------------------------------------------------------

    def _notice(self, notice: Notice) -> None:
        kind, view = notice.kind, self.status_view
        match notice:
            case notices.OwnPlaced(lo, hi, position):
                # GR-5: of a unit, it is one of its parts.
                self.receipts.stable(hi, position, hi - lo)
                self._settle()
            case notices.RecordedUpto():
                self._settle()
            case notices.OwnRefused():
                self.receipts.refused(notice.hi, "the retransmitter has refused it")
            case notices.RetransmitterHeard() | notices.RetransmitterSilent():
                view.up = isinstance(notice, notices.RetransmitterHeard)
                view.say_how(time.monotonic_ns())
            case notices.Voting() | notices.Waits() | notices.ReignBegun():
                view.say_how(time.monotonic_ns())
            case notices.NoReign():
                view.say_broken(notice.reason, *notice.silent)
            case notices.GroupBroken():
                view.say_broken(notice.reason)
        if kind not in QUIET:
            level = "warning" if kind in ALARMING else "info"
            shown = ", ".join(map(str, view.named(kind, notice.info)))[:200]
            self.node.log(level, f"group.{kind}", group=self.spec.name, info=shown)

    def _settle(self) -> None:
        user = self.member.user
        self.receipts.settle(user.recorded if user is not None else 0)

    # -- the end: roles are for good, and whoever stops is missed or away ----------------------

    def close(self, reason: str) -> None:
        """Take part no more."""
        if self.closed:
            return
        self.closed = True
        self.outbox.abandon(reason)
        for application in list(self.applications.values()):
            if isinstance(application, CatchUp):
                application.stop()
        if self.node.fatal is None:
            self.persistence.stop()
        self.abandon()
        if self.node.group_hosts.get(self.spec.name) is self:
            self.node.closed_group(self)

    def abandon(self) -> None:
        """Let go of files and sockets, as a process does that is killed."""
        self.closed = True
        self.node.schedule.unregister(self)
        self.persistence.close()
        self.lines.close()

    def fail(self, reason: str) -> None:
        """The node cannot go on."""
        self.status_view.state = f"broken: {reason}"
        self.status_view.show()
        self.outbox.abandon(reason)


QUIET: Final = frozenset({"stable", "recorded", "missed"})
ALARMING: Final = frozenset({"broken", "gap_unavailable", "retracted", "suspect", "down", "waits"})
