"""What `verify` says: a verdict per invariant, and rows that prove it when a promise was broken."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any, Final

from msgspec import Struct, field

from roundelay.core.engine import MS
from roundelay.pipeline.verify.runs import TracePart
from roundelay.trace.checkers.verdict import INVARIANTS as CHECKED
from roundelay.trace.checkers.verdict import Violation

HOLDERS: Final = "holders"
LISTS: Final = "lists"

INVARIANTS: Final[dict[str, str]] = {
    **{name: CHECKED[name] for name in ("I1", "I2", "I3", "I4", "I5", "I8")},
    HOLDERS: "at least L + 1 sites have a message when it is first committed",
    LISTS: "one authorised list per version",
}
"""What `verify` judges, each in a line."""

KEPT: Final = 10
"""Violations kept of each invariant; more are only counted."""

SHOWN: Final = ("run", "order", "sites", "rows", "settled", "strategy", "holds")
"""What is told of a run beside its invariants."""

NO_END: Final = "the trace has no end mark: not judged"
NO_ORDER: Final = "the service promises no order"
NO_SENDS: Final = "the trace has no transmissions"

AROUND_NS: Final = 10 * MS
"""How much of the trace before and after a counterexample is worth looking at."""


class Figures(Struct, frozen=True):
    """How much was looked at in a run."""

    deliveries: int
    positions: int
    own: int
    """Messages that are due at the site that submitted them."""


class InvariantVerdict(Struct):
    """Of one invariant: how much was checked, how often it was broken, the first rows of that."""

    checked: int = 0
    broken: int = 0
    findings: list[Violation] = field(default_factory=list)
    note: str = ""

    def add(self, findings: Iterable[Violation], count: int | None = None) -> None:
        """Take findings in; `count` if there are more than these."""
        new = list(findings)
        self.broken += len(new) if count is None else count
        self.findings = sorted(self.findings + new, key=lambda f: (f.time, f.seq))[:KEPT]


class RunJudgement(Struct):
    """Of one run."""

    run: str
    parts: tuple[TracePart, ...]
    order: str
    sites: int
    rows: int
    strategy: str
    settled: bool
    invariants: dict[str, InvariantVerdict] = field(
        default_factory=lambda: {name: InvariantVerdict() for name in INVARIANTS}
    )

    def checked(self, count: int, *names: str) -> None:
        """So much was looked at for each of these invariants."""
        for name in names:
            self.invariants[name].checked = count

    def note(self, text: str, *names: str) -> None:
        for name in names:
            self.invariants[name].note = text

    @property
    def holds(self) -> bool:
        return not any(verdict.broken for verdict in self.invariants.values())

    def trace_of(self, site: int) -> str:
        """The file to draw: the site's own if sites have files of their own."""
        mine = (part.path for part in self.parts if part.may_have(site))
        return next(mine, self.parts[0].path)


def as_json(judgements: list[RunJudgement]) -> dict[str, Any]:
    """All runs together under `invariants`, and each by itself under `runs`."""
    together: dict[str, Any] = {}
    for name in INVARIANTS:
        verdicts = [judgement.invariants[name] for judgement in judgements]
        rows = [_row(j, f) for j in judgements for f in j.invariants[name].findings]
        together[name] = {
            "about": INVARIANTS[name],
            "holds": not any(verdict.broken for verdict in verdicts),
            "checked": sum(verdict.checked for verdict in verdicts),
            "broken": sum(verdict.broken for verdict in verdicts),
            "counterexamples": rows[:KEPT],
        }
        notes = sorted({verdict.note for verdict in verdicts if verdict.note})
        if notes:
            together[name]["note"] = "; ".join(notes)
    return {
        "holds": all(judgement.holds for judgement in judgements),
        "invariants": together,
        "runs": [
            {
                **{name: getattr(judgement, name) for name in SHOWN},
                "invariants": {
                    name: {"holds": not verdict.broken, "checked": verdict.checked}
                    for name, verdict in judgement.invariants.items()
                },
            }
            for judgement in judgements
        ],
    }


def _row(judgement: RunJudgement, finding: Violation) -> dict[str, Any]:
    from_ms, to_ms = window(finding)
    trace = judgement.trace_of(finding.site)
    known = {name: getattr(finding, name) for name in ("seq", "source", "number")}
    return {
        "run": judgement.run,
        "site": finding.site,
        "time_ns": finding.time,
        **{name: value if value >= 0 else None for name, value in known.items()},
        "fingerprint": finding.fp,
        "detail": finding.detail,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "diagram": f"roundelay diagram {quoted(trace)} --from-ms {from_ms} --to-ms {to_ms}",
    }


def window(finding: Violation) -> tuple[float, float]:
    """The stretch of the trace that shows it, in ms.

    >>> window(Violation("I1", 2, 50_000_000, "", from_ns=45_000_000))
    (35.0, 60.0)
    """
    start = finding.time if finding.from_ns < 0 else min(finding.from_ns, finding.time)
    # A story that began long ago is shown by its end: nobody can look at minutes of arrows.
    start = max(start, finding.time - 10 * AROUND_NS)
    return max(0, start - AROUND_NS) / MS, (finding.time + AROUND_NS) / MS


def quoted(path: str) -> str:
    here, place = Path.cwd(), Path(path)
    return quote(str(place.relative_to(here)) if place.is_relative_to(here) else path)
