"""What `verify` says: a verdict per invariant, and rows that prove it when a promise was broken."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from roundelay.core.engine import MS
from roundelay.pipeline.verify.runs import Part, Run
from roundelay.trace.checkers.verdict import INVARIANTS as CHECKED

HOLDERS: Final = "holders"
LISTS: Final = "lists"

INVARIANTS: Final[dict[str, str]] = {
    **{name: CHECKED[name] for name in ("I1", "I2", "I3", "I4", "I5", "I8")},
    HOLDERS: "at least L + 1 sites have a message when it is first committed",
    LISTS: "one authorised list per version",
}
"""What `verify` judges, each in a line."""

KEPT: Final = 10
"""Counterexamples kept of each invariant; more are only counted."""

AROUND_NS: Final = 10 * MS
"""How much of the trace before and after a counterexample is worth looking at."""


class Finding(Struct, frozen=True):
    """A counterexample: `invariant` was broken at `site` (-1: nowhere in particular) at `time`."""

    invariant: str
    site: int
    time: int
    detail: str
    seq: int = -1
    source: int = -1
    number: int = -1
    fp: int | None = None
    from_ns: int = -1
    """When the story of it begins, if that is not `time`."""


class Verdict(Struct):
    """Of one invariant: how much was checked, how often it was broken, the first rows of that."""

    checked: int = 0
    broken: int = 0
    findings: list[Finding] = field(default_factory=list)
    note: str = ""

    def add(self, findings: Iterable[Finding], count: int | None = None) -> None:
        """Take findings in; `count` if there are more than these."""
        kept = list(findings)
        self.broken += len(kept) if count is None else count
        self.findings = sorted(self.findings + kept, key=lambda one: (one.time, one.seq))[:KEPT]


class Judgement(Struct):
    """Of one run."""

    run: str
    parts: tuple[Part, ...]
    order: str
    sites: int
    rows: int
    strategy: str
    settled: bool
    invariants: dict[str, Verdict] = field(
        default_factory=lambda: {name: Verdict() for name in INVARIANTS}
    )

    @classmethod
    def of(cls, run: Run, strategy: str, settled: bool) -> Judgement:
        """One that has found nothing yet."""
        return cls(
            run.name, run.parts, run.order, len(run.users), run.rows, strategy, settled,
        )  # fmt: skip

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.invariants[finding.invariant].add([finding])

    @property
    def holds(self) -> bool:
        return not any(verdict.broken for verdict in self.invariants.values())

    def trace_of(self, site: int) -> str:
        """The file to draw: the site's own if sites have files of their own."""
        return next((part.path for part in self.parts if part.low <= site <= part.high),
                    self.parts[0].path)  # fmt: skip


def as_json(judgements: list[Judgement]) -> dict[str, Any]:
    """All runs together under `invariants`, and each by itself under `runs`."""
    together: dict[str, Any] = {}
    for name in INVARIANTS:
        verdicts = [(one, one.invariants[name]) for one in judgements]
        rows = [_row(one, f) for one, verdict in verdicts for f in verdict.findings]
        together[name] = {
            "about": INVARIANTS[name],
            "holds": not any(verdict.broken for _, verdict in verdicts),
            "checked": sum(verdict.checked for _, verdict in verdicts),
            "broken": sum(verdict.broken for _, verdict in verdicts),
            "counterexamples": rows[:KEPT],
        }
        notes = sorted({verdict.note for _, verdict in verdicts if verdict.note})
        if notes:
            together[name]["note"] = "; ".join(notes)
    return {
        "holds": all(one.holds for one in judgements),
        "invariants": together,
        "runs": [
            {
                "run": one.run,
                "order": one.order,
                "sites": one.sites,
                "rows": one.rows,
                "settled": one.settled,
                "strategy": one.strategy,
                "holds": one.holds,
                "invariants": {
                    name: {"holds": not verdict.broken, "checked": verdict.checked}
                    for name, verdict in one.invariants.items()
                },
            }
            for one in judgements
        ],
    }


def _row(judgement: Judgement, finding: Finding) -> dict[str, Any]:
    from_ms, to_ms = window(finding)
    trace = judgement.trace_of(finding.site)
    return {
        "run": judgement.run,
        "site": finding.site,
        "time_ns": finding.time,
        "seq": finding.seq if finding.seq >= 0 else None,
        "source": finding.source if finding.source >= 0 else None,
        "number": finding.number if finding.number >= 0 else None,
        "fingerprint": finding.fp,
        "detail": finding.detail,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "diagram": f"roundelay diagram {quoted(trace)} --from-ms {from_ms} --to-ms {to_ms}",
    }


def window(finding: Finding) -> tuple[float, float]:
    """The stretch of the trace that shows it, in ms.

    >>> window(Finding("I1", 2, 50_000_000, "", from_ns=45_000_000))
    (35.0, 60.0)
    """
    start = finding.time if finding.from_ns < 0 else min(finding.from_ns, finding.time)
    # A story that began long ago is shown by its end: nobody can look at minutes of arrows.
    start = max(start, finding.time - 10 * AROUND_NS)
    return max(0, start - AROUND_NS) / MS, (finding.time + AROUND_NS) / MS


def quoted(path: str) -> str:
    from shlex import quote

    here = Path.cwd()
    place = Path(path)
    return quote(str(place.relative_to(here)) if place.is_relative_to(here) else path)
