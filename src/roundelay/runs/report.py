"""Reports: a run for people, as one HTML file that needs nothing else, and its diagram."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from roundelay.runs.folder import DIAGRAM, PARAMS, RESULTS, TRACE, RunFolder
from roundelay.runs.swarm import Swarm, SwarmParams, run_seed
from roundelay.sim.swarm.plan import Plan
from roundelay.trace.checkers.verdict import INVARIANTS
from roundelay.trace.diagram.drawing import render
from roundelay.trace.reader import TraceFile

STYLE: Final = """
body{font:15px/1.5 -apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;color:#222;
max-width:1180px;margin:2rem auto;padding:0 1.5rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.lead{color:#666;margin:0 0 1.2rem}.row{display:flex;flex-wrap:wrap;gap:0 4rem}
.verdict{font-size:1.15rem;font-weight:600;padding:.7rem 1rem;
border-radius:6px;margin:1rem 0}.good{background:#e6f4ea;color:#14662f}
.bad{background:#fce8e8;color:#9b1c1c}table{border-collapse:collapse;font-variant-numeric:
tabular-nums}td,th{padding:.25rem .9rem .25rem 0;text-align:left;border-bottom:1px solid #eee}
td.n,th.n{text-align:right}.ok{color:#14662f}.no{color:#9b1c1c;font-weight:600}
code{font:13px ui-monospace,Menlo,Consolas,monospace}.picture{overflow-x:auto;border:1px solid #eee;
border-radius:6px}svg{display:block}
"""

BESIDE: Final = {
    PARAMS: "what decided the run",
    RESULTS: "the numbers, for programs",
    TRACE: "every event; roundelay diagram draws any stretch of it",
    DIAGRAM: "the picture above",
}

Cell = str | int | float

JUDGED: Final = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")
"""In a demo; I8 is about messages for some of the sites only, and there all are for all."""
NUMBERS: Final = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """A whole HTML page, without scripts and without links to anywhere.

    It ends with what else is in the folder.
    """
    beside_it = grid("Beside this report", ("", ""), BESIDE.items())
    body = "\n".join([*sections, beside_it])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(subtitle)}</p>\n{body}\n</body></html>\n'
    )


def verdict(good: bool, text: str) -> str:
    return f'<p class="verdict {"good" if good else "bad"}">{escape(text)}</p>'


def grid(title: str, head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table; numbers stand to the right."""
    lines = []
    numeric: set[int] = set()
    for row in rows:
        numeric |= {i for i, cell in enumerate(row) if not isinstance(cell, str)}
        lines.append("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>")
    heads = "".join(
        f'<th class="n">{escape(name)}</th>' if i in numeric else f"<th>{escape(name)}</th>"
        for i, name in enumerate(head)
    )
    top = f"<tr>{heads}</tr>" if any(head) else ""
    return f"<h2>{escape(title)}</h2><table>{top}{''.join(lines)}</table>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        good, bad = cell in ("kept", "yes"), cell in ("BROKEN", "NO")
        kind = ' class="ok"' if good else ' class="no"' if bad else ""
        return f"<td{kind}>{escape(cell)}</td>"
    text = f"{cell:,}" if isinstance(cell, int) else f"{cell:,.3f}"
    return f'<td class="n">{text}</td>'


def promises(broken: Collection[str]) -> str:
    """The promises that are judged in a demo, and which of them are `broken`."""
    rows = [(name, INVARIANTS[name], "BROKEN" if name in broken else "kept") for name in JUDGED]
    return grid("Promises", ("", "", ""), rows)


def agreement(sites: int, messages: int) -> str:
    """The verdict on a demo in which all went well."""
    return (
        f"All {NUMBERS.get(sites, sites)} sites agree: {messages} messages, "
        "each delivered once at every site, in one order."
    )


def beside(*parts: str) -> str:
    """Parts side by side, where there is room."""
    return '<div class="row">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def picture(title: str, svg: str, number: int = 0) -> str:
    """A diagram in the page; pictures of one page need numbers of their own.

    What a diagram names inside itself is renamed, since all of a page's names are in one pot.
    """
    svg = svg.replace('id="', f'id="p{number}').replace("url(#", f"url(#p{number}")
    return f'<h2>{escape(title)}</h2><div class="picture">{svg}</div>'


# -- simulate ----------------------------------------------------------------------------------

_NUMBERS: Final = (
    ("messages", "messages"),
    ("pdus", "PDUs"),
    ("pdus_per_message", "PDUs per message"),
    ("control_per_message", "control PDUs per message"),
    ("drain_pdus", "PDUs to drain the run, not counted"),
    ("storage_max", "messages kept by one site, at most"),
    ("delay_ms_mean", "delay, mean (ms)"),
    ("delay_ms_p50", "delay, median (ms)"),
    ("delay_ms_p99", "delay, 99 % below (ms)"),
    ("delay_ms_max", "delay, longest (ms)"),
    ("lost_copies", "copies lost"),
    ("virtual_s", "virtual time (s)"),
    ("events", "events"),
)


def write_simulate_report(folder: RunFolder, results: Mapping[str, Any]) -> None:
    """Diagram and report of a run of `simulate`."""
    svg = render(TraceFile(folder.trace))
    good = results["delivered_everywhere"] and not results["violations"]
    text = (
        "Every site delivered every message, and no promise was broken."
        if good
        else "Not every site delivered every message."
        if not results["violations"]
        else "A promise was broken."
    )
    sections = [
        verdict(good, text),
        beside(
            grid("Numbers", ("", ""), [(text, results[name]) for name, text in _NUMBERS]),
            grid("PDUs by kind", ("", ""), list(results["pdus_by_kind"].items())),
        ),
        _violations(results["violations"]),
        picture("A stretch of it", svg),
    ]
    subtitle = (
        f"{results['sites']} sites, L = {results['resilience']}, loss {results['loss']:.1%}, "
        f"profile {results['profile']}, seed {results['seed']}"
    )
    folder.write_report(svg, page(f"simulate {results['protocol']}", subtitle, sections))


def _violations(violations: Sequence[Mapping[str, Any]]) -> str:
    if not violations:
        return ""
    rows = [
        [row[name] for name in ("invariant", "site", "time_ms", "detail")] for row in violations
    ]
    return grid("Broken promises", ("invariant", "site", "ms", "what"), rows)


# -- one seed of the swarm ---------------------------------------------------------------------


def run_seed_into(folder: RunFolder, params: SwarmParams) -> dict[str, Any]:
    """Run the one seed of `params` and leave everything about it in `folder`."""
    plan = Plan.from_seed(params.first, params.protocol, params.profile)
    folder.write_params("swarm", {"mutant": params.mutant, "plan": msgspec.to_builtins(plan)})
    swarm = Swarm(params)
    swarm.add(run_seed(params.first, params, trace=folder.trace, plan=plan))
    results = swarm.results()
    folder.write_results(results)
    trace = TraceFile(folder.trace)
    svg = render(trace, *_around(results["violations"], trace))
    good = not results["violations"]
    strikes = [(strike.at / 1e6, strike.kind, strike.lasts_ns / 1e6) for strike in plan.strikes]
    faults = [(kind, count) for kind, count in results["faults"].items() if count]
    sections = [
        verdict(good, "No promise was broken." if good else "A promise was broken."),
        _violations(results["violations"]),
        beside(
            grid("Strikes planned", ("at ms", "kind", "for ms"), strikes),
            grid("Faults injected", ("kind", "times"), faults),
        ),
        picture("A stretch of it", svg),
    ]
    subtitle = (
        f"{plan.sites} sites, L = {plan.resilience}, {results['committed']} messages committed; "
        f"again: {params.rerun(params.first)}"
    )
    folder.write_report(svg, page(f"swarm, seed {params.first}", subtitle, sections))
    return results


def _around(
    violations: Sequence[Mapping[str, Any]], trace: TraceFile
) -> tuple[int | None, int | None]:
    """The stretch before the first violation that has a time, else whatever is worth a look."""
    times = [row["time_ms"] for row in violations if row["time_ms"] >= 0]
    if not times:
        return None, None
    end = int(min(times) * 1e6)
    length = max(1, (trace.last_ns - trace.first_ns) // 50)
    return max(0, end - length), end + length // 10 + 1
