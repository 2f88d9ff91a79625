"""On which line one site speaks to another (GR-22, GR-24).

What is said to one site alone goes over line A, so that line B stays free for broadcasts.  If line
A fails, line B has to do: the retransmitter, which hears whether the acknowledger answers its signs
of life on both lines, says so to everybody (`Alive.mode`).  Before it knows, and for a site that
alone is deaf on a line, these rules find a way: a line on which nothing at all is heard any more is
not used while the other one is heard; an answer goes back on the line that the question came on;
and a question that R times was not answered is repeated on either line in turn.
"""

from __future__ import annotations

from roundelay.core.grsb.config import GrsbConfig
from roundelay.core.grsb.pdu import DUAL, LINE_A, LINE_B, ONLY_B, SINGLE_LINE


class Ways:
    """Of one site, in a group with `lines` lines.

    Who last spoke on the unusual line is spoken to there for t_probe.
    """

    def __init__(self, lines: int, config: GrsbConfig, now: int) -> None:
        self.two = lines == 2
        self.config = config
        self.mode = DUAL if self.two else SINGLE_LINE
        """As the reigning retransmitter says."""
        self.now = now
        self.heard = {LINE_A: now, LINE_B: now}
        """When something was last heard there, of whomever."""
        self.other: dict[int, int] = {}
        """Sites that last spoke on the unusual line, and until when that counts: one entry each."""

    @property
    def usual(self) -> int:
        """Where sites speak to each other, and where marks for everybody go."""
        return LINE_B if self.mode == ONLY_B else LINE_A

    def hear(self, source: int, line: int, alone: bool) -> None:
        """`source` has spoken, to everybody or to us alone."""
        if not self.two:
            return
        self.heard[line] = self.now
        if alone and line == self.usual:
            self.other.pop(source, None)
        elif alone:
            self.other[source] = self.now + self.config.probe_ns

    def change(self, mode: int) -> None:
        """The retransmitter says which lines are used."""
        if self.two and mode != self.mode:
            self.mode = mode
            self.other.clear()

    def silent(self, line: int) -> bool:
        """Whether not even signs of life have been heard there."""
        return self.heard[line] + self.config.alive_timeout_ns < self.now

    def to(self, site: int, tries: int = 0) -> int:
        """GR-22, GR-24: the line to take; `tries` questions before this one were not answered."""
        if not self.two:
            return LINE_A
        line = self.usual
        if self.other.get(site, -1) > self.now or (
            self.silent(line) and not self.silent(flip(line))
        ):
            line = flip(line)
        in_doubt = tries >= self.config.attempts or (self.silent(LINE_A) and self.silent(LINE_B))
        return flip(line) if in_doubt and tries % 2 else line


def flip(line: int) -> int:
    """The other one."""
    return LINE_A + LINE_B - line
