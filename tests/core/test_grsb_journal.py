"""A GRSB recorder with its archive in a real journal."""

from __future__ import annotations

from pathlib import Path
from random import Random

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Pdu
from roundelay.core.grsb.config import SEPARATE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import (
    END,
    START,
    Bcast,
    DaAck,
    Message,
    PollOk,
    Recovered,
    ReplayData,
    ReplayReq,
)
from roundelay.core.grsb.pdu import Poll as PollPdu
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Archive
from roundelay.core.selection import EVERYTHING, Selection
from roundelay.journal.grsb import JournalArchive, message_of, run_of
from roundelay.journal.journal import Journal

CR, DA, PR, U = range(4)
ROLES = Roles.profile(SEPARATE, 6)


def message(gseq: int) -> Message:
    return Message(
        0, gseq, 5000 + gseq, U + gseq % 3, 2, gseq, gseq % 5, START if gseq % 7 == 3 else 0,
        0, gseq % 2, Bundle.of(b"message %d" % gseq),
    )  # fmt: skip


class Recording:
    """A recorder's site and its journal."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder, group="grsb:test")
        self.archive = JournalArchive(self.journal)
        as_port: Archive = self.archive
        self.site = GrsbSite(PR, ROLES, GrsbConfig(), Random(1), archive=as_port, inc=1)
        self.now = 0

    def hear(self, pdu: Pdu, source: int) -> list[Pdu]:
        self.site.receive(pdu, source, self.now)
        self.now += 5 * MS
        self.site.on_timer(self.now)
        out = self.site.take()
        for record in out.persists:
            self.archive.keep(record)
        self.journal.commit()
        return [pdu for _, pdu, _ in out.sends]


def test_a_message_survives_its_way_through_a_run() -> None:
    whole = message(3)
    assert message_of(run_of(whole)) == whole
    head = message(4).head()
    assert message_of(run_of(head)) == head
    assert message_of(run_of(head)).is_head
    end = Message(0, 9, 1, U, 1, 1, 0, END, 0, 0, Bundle.of(b"x"))
    assert message_of(run_of(end)).mtype == END


def test_what_was_recorded_is_played_back_from_the_journal_also_after_a_restart(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path / "journal")
    for gseq in range(600):  # more than a recorder keeps in memory
        recording.hear(Bcast(message(gseq), gseq), CR)
    recording.hear(DaAck(0, 600, 0), DA)
    assert recording.journal.end == 600
    assert PollOk(600) in recording.hear(PollPdu(600), DA)
    for again in (False, True):
        if again:
            recording.journal.close()
            recording = Recording(tmp_path / "journal")
            assert recording.site.recorder is not None
            assert recording.site.recorder.mark == 600
        answers = recording.hear(ReplayReq(0, 0, 0, 600, (2,), (U,), (), 32), U)
        got = [pdu.message for pdu in answers if isinstance(pdu, ReplayData)]
        due = [message(gseq) for gseq in range(600) if gseq % 5 == 2 and gseq % 3 == 0]
        assert got == due[:32]
        answers = recording.hear(ReplayReq(0, 0, 5595, 600, (), (), (), 32), U)
        got = [pdu.message for pdu in answers if isinstance(pdu, ReplayData)]
        assert got == [message(gseq) for gseq in range(595, 600)]
    assert recording.archive.select(10, 20, Selection(kinds=frozenset((1,))), 3) == [
        message(11), message(13), message(15),
    ]  # fmt: skip
    recording.journal.close()


def test_a_stretch_that_nobody_has_is_missing_in_the_journal_too(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "journal")
    recording.hear(Bcast(message(0), 0), CR)
    recording.hear(DaAck(0, 9, 0), DA)
    recording.hear(Recovered(1, 5, ()), DA)
    recording.hear(Recovered(1, 5, ()), CR)
    for gseq in range(5, 9):
        recording.hear(Recovered(gseq, gseq + 1, (message(gseq),)), DA)
    assert recording.archive.missing == [(1, 5)]
    assert [one.gseq for one in recording.archive.select(0, 9, EVERYTHING, 99)] == [0, 5, 6, 7, 8]
    recording.journal.close()
