"""The papers' figures, drawn from judged rows: lines are models, crosses are simulations.

CM84 draws its predictions as lines and its simulations as X's; so do we, with the 95 % interval of
each as a bar, and a ring around what lies outside the tolerance.  Lines are named where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from roundelay.core import cost
from roundelay.core.families import PO, POSITIVE_ACK, TO, TO_CHANNEL, TOKEN
from roundelay.pipeline.research.claims import CONTROL, PDUS, ROUNDS, SLOTS, STORAGE
from roundelay.pipeline.research.verdicts import OUTSIDE

Row = dict[str, Any]

INK: Final = "#222222"
SOFT: Final = "#8a8a8a"
BLUE, GREEN, RED = "#0060a8", "#008a63", "#c8501e"
PURPLE: Final = "#7a3e9d"
TAU_COLOURS: Final = {0.1: BLUE, 1.0: GREEN, 10.0: RED}
LOOK: Final[Any] = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9e9e9",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "figure.dpi": 100,
    "savefig.dpi": 170,
    "svg.fonttype": "none",
    "svg.hashsalt": "roundelay",  # the same picture is the same file
    "legend.frameon": False,
}

STEPS: Final = 81
GAP: Final = 0.052
"""Least distance of two names, as a share of the axis."""


def drawn(draw: Callable[[Sequence[Row]], Any], rows: Sequence[Row]) -> Any:
    """A figure, in the look of all of them."""
    with mpl.rc_context(LOOK):
        return draw(rows)


def save(figure: Any, path: str) -> None:
    """As PNG and as SVG; without a date, so that the same figure is the same file."""
    with mpl.rc_context(LOOK):
        figure.savefig(f"{path}.png", metadata={"Software": None})
        figure.savefig(f"{path}.svg", metadata={"Date": None, "Creator": "roundelay figures"})


# -- pieces ------------------------------------------------------------------------------------


def _points(axis: Any, x: Callable[[Row], float], rows: Iterable[Row], colour: str,
            marker: Any = "x", size: float = 5.5, label: str | None = None) -> None:  # fmt: skip
    """Means with their intervals; what is outside the tolerance gets a ring."""
    rows = list(rows)
    if not rows:
        return
    xs, means = [x(row) for row in rows], [row["mean"] for row in rows]
    bars = [row["ci95"] or 0.0 for row in rows]
    cut = any(_reach(row) < row["mean"] + bar for row, bar in zip(rows, bars, strict=True))
    axis.errorbar(xs, means, yerr=bars, fmt="none", ecolor=colour, elinewidth=1.3, capsize=0,
                  zorder=3, clip_on=cut)  # fmt: skip
    axis.plot(xs, means, marker=marker, color=colour, markersize=size, markeredgewidth=1.4,
              linestyle="none", zorder=3, label=label, clip_on=False)  # fmt: skip
    off = [row for row in rows if row["verdict"] == OUTSIDE]
    if off:
        axis.plot([x(row) for row in off], [row["mean"] for row in off], "o", color="#c00000",
                  markersize=12, markerfacecolor="none", markeredgewidth=1.2, zorder=4)  # fmt: skip


def _reach(row: Row) -> float:
    """How high a panel has to be; an interval of two runs, which can be huge, ends at its edge."""
    mean: float = row["mean"]
    return min(mean + (row["ci95"] or 0.0), 1.25 * mean)


def _names(axis: Any, ends: Sequence[tuple[float, str, str]], x: float) -> None:
    """Name lines at their right ends (height, text, colour), without one over the other."""
    low, high = axis.get_ylim()
    span = high - low
    ordered = sorted(ends)
    heights = [(y - low) / span for y, _, _ in ordered]
    placed = _spread(heights, GAP)
    for (y, text, colour), at in zip(ordered, placed, strict=True):
        here = low + at * span
        axis.annotate(
            text, xy=(x, y), xytext=(1.035, at), textcoords="axes fraction", color=colour,
            va="center", fontsize=8.5, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.55,
                        "shrinkA": 1, "shrinkB": 1} if abs(here - y) > 0.008 * span else None,
        )  # fmt: skip


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """`heights`, ascending, moved as little as need be to lie `gap` apart.

    >>> _spread([0.1, 0.11, 0.5], 0.1)
    [0.055, 0.155, 0.5]
    """
    groups: list[list[float]] = []  # [sum of wishes, count]: a block around the mean of its wishes
    for wish in heights:
        groups.append([wish, 1.0])
        while len(groups) > 1:
            (sum_a, n_a), (sum_b, n_b) = groups[-2], groups[-1]
            if sum_b / n_b - sum_a / n_a >= gap * (n_a + n_b) / 2 - 1e-12:
                break
            groups[-2:] = [[sum_a + sum_b, n_a + n_b]]
    placed = []
    for total, count in groups:
        first = total / count - gap * (count - 1) / 2
        placed += [round(first + gap * k, 9) for k in range(int(count))]
    return placed


def _caption(figure: Any, text: str, rows: Sequence[Row]) -> None:
    off = sum(row["verdict"] == OUTSIDE for row in rows)
    if off:
        text += f"  Red rings: {off} of {len(rows)} means outside the tolerance."
    figure.text(0.012, 0.012, text, fontsize=8, color="#666666", ha="left", va="bottom")


def _runs(rows: Sequence[Row]) -> str:
    counts = sorted({row["runs"] for row in rows})
    messages = sorted({row["messages"] // row["runs"] for row in rows})
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    many = f"{messages[0]:,}" if len(messages) == 1 else f"{messages[0]:,}–{messages[-1]:,}"
    return f"{each} runs a point, {many} messages a run"


# -- CM84 Fig. 6 -------------------------------------------------------------------------------


def fig6(rows: Sequence[Row]) -> Any:
    """Messages per broadcast against the chance of loss, four panels."""
    figure = Figure(figsize=(11.2, 8.6))
    axes = figure.subplots(2, 2)
    figure.subplots_adjust(left=0.062, right=0.895, top=0.905, bottom=0.1, wspace=0.38, hspace=0.3)
    figure.suptitle("Messages per broadcast when messages are lost", x=0.012, ha="left",
                    fontsize=14, fontweight="bold", y=0.985)  # fmt: skip
    panels = (("(a)  3 sites, L = 1", 3, (1,)), ("(b)  10 sites, L = 1", 10, (1,)),
              ("(c)  30 sites, L = 1", 30, (1,)),
              ("(d)  10 sites, L = 1, 2 and 4", 10, (1, 2, 4)))  # fmt: skip
    for axis, (title, sites, levels) in zip(axes.flat, panels, strict=True):
        _fig6_panel(axis, [row for row in rows if row["sites"] == sites], sites, levels)
        axis.set_title(title)
    for axis in axes[1]:
        axis.set_xlabel("probability of losing a message, $P_e$")
    for axis in axes[:, 0]:
        axis.set_ylabel("messages transmitted per broadcast")
    _caption(
        figure,
        "After Chang and Maxemchuk (1984), Fig. 6.  Lines: the model of its appendix.  "
        f"Crosses: simulation, {_runs(rows)};\nbars: 95 % intervals, where they are wider than "
        "the crosses.  "
        "τ: messages per hold time of the token (0.1 idle, 10 busy).  "
        "L: sites that may fail without a message being lost.",
        rows,
    )
    return figure


_LINE_OF_LEVEL: Final[dict[int, Any]] = {1: "-", 2: (0, (5, 1.6)), 4: (0, (1.2, 1.4))}
_MARKER_OF_LEVEL: Final[dict[int, Any]] = {1: "x", 2: "+", 4: (3, 2, 0)}


def _fig6_panel(axis: Any, rows: Sequence[Row], sites: int, levels: Sequence[int]) -> None:
    rows = [r for r in rows if r["protocol"] == POSITIVE_ACK or r["resilience"] in levels]
    losses = sorted({row["loss"] for row in rows}) or [0.0, 0.2]
    right = losses[-1]
    grid = [right * step / (STEPS - 1) for step in range(STEPS)]
    ends = []
    positive = [cost.x_b_positive_ack(sites, p) for p in grid]
    axis.plot(grid, positive, color=SOFT, lw=1.5, ls=(0, (6, 3)))
    _points(axis, lambda r: r["loss"], (r for r in rows if r["protocol"] == POSITIVE_ACK), SOFT)
    ends.append((positive[-1], "positive ack", "#6a6a6a"))
    token = [row for row in rows if row["protocol"] == TOKEN]
    for tau, colour in TAU_COLOURS.items():
        for level in levels:
            line = [cost.x_p_token(sites, level, tau, p) for p in grid]
            style = _LINE_OF_LEVEL[level]
            axis.plot(grid, line, color=colour, lw=1.5, ls=style)
            here = [r for r in token if (r["tau"], r["resilience"]) == (tau, level)]
            _points(axis, lambda r: r["loss"], here, colour, _MARKER_OF_LEVEL[level])
            if len(levels) == 1:
                ends.append((line[-1], f"τ = {tau:g}", colour))
            elif tau < 10:
                ends.append((line[-1], f"τ = {tau:g}, L = {level}", colour))
        if len(levels) > 1 and tau >= 10:
            ends.append((line[-1], f"τ = {tau:g}, any L", colour))
    axis.set_xlim(0, right)
    top = max([positive[-1], *(cost.x_p_token(sites, max(levels), 0.1, p) for p in grid)])
    axis.set_ylim(0, 1.06 * max([top, *map(_reach, rows)]))
    axis.set_xticks([0, 0.05, 0.1, 0.15, 0.2] if right == 0.2 else losses)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    _names(axis, ends, right)


# -- CM84 Table I ------------------------------------------------------------------------------


def table1(rows: Sequence[Row]) -> Any:
    """Control messages and storage by transfer rate: the paper's, and measured ones."""
    sizes = sorted({row["sites"] for row in rows})
    figure = Figure(figsize=(9.6, 1.1 + 2.15 * len(sizes)))
    axes = figure.subplots(len(sizes), 1, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.02, right=0.98, top=1 - 0.75 / (1.1 + 2.15 * len(sizes)),
                           bottom=0.125, hspace=0.12)  # fmt: skip
    figure.suptitle("Control messages against storage", x=0.015, ha="left", fontsize=14,
                    fontweight="bold", y=0.975)  # fmt: skip
    for axis, sites in zip(axes, sizes, strict=True):
        _table1_of(axis, [row for row in rows if row["sites"] == sites], sites)
    _caption(
        figure,
        "After Chang and Maxemchuk (1984), Table I; L = 1.  Bold: simulated, "
        f"{_runs(rows)}; grey: the paper's formula.\n"
        "Busy: all sources always have a message waiting; idle: one message at a time.\n"
        "With L = 1, one transfer per several acks costs an idle group one NULL more, which "
        "passes the token.",
        rows,
    )
    return figure


def _table1_of(axis: Any, rows: Sequence[Row], sites: int) -> None:
    axis.axis("off")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    rates = sorted({(row["kw"], row["kr"]) for row in rows}, key=lambda r: (-r[0], r[1]))
    columns = (0.42, 0.61, 0.8, 0.995)
    heads = ("control, busy", "control, idle", "storage", "storage, 10 % lost")
    axis.text(0.005, 0.93, f"{sites} sites", fontweight="bold", fontsize=10.5, va="center")
    for x, head in zip(columns, heads, strict=True):
        axis.text(x, 0.93, head, ha="right", va="center", color="#555555", fontsize=9)
    axis.plot([0, 1], [0.86, 0.86], color=INK, lw=1.1)
    height = 0.86 / max(1, len(rates))
    for place, rate in enumerate(rates):
        y = 0.86 - height * (place + 0.5)
        axis.text(0.005, y, _rate_name(rate, sites), va="center")
        cells = (("saturated", 0.0, CONTROL), ("isolated", 0.0, CONTROL),
                 ("saturated", 0.0, STORAGE), ("saturated", 0.1, STORAGE))  # fmt: skip
        for x, (load, loss, measure) in zip(columns, cells, strict=True):
            cell = [
                row
                for row in rows
                if (row["kw"], row["kr"], row["load"], row["loss"], row["measure"])
                == (*rate, load, loss, measure)
            ]
            if cell:
                _table1_cell(axis, x, y, cell[0])
        axis.plot([0, 1], [y - height / 2] * 2, color="#dddddd", lw=0.7)


def _table1_cell(axis: Any, x: float, y: float, row: Row) -> None:
    wrong = row["verdict"] == OUTSIDE
    digits = 0 if row["measure"] == STORAGE else 2
    axis.text(x - 0.068, y, f"{row['mean']:.{digits}f}", ha="right", va="center",
              fontweight="bold", color="#c00000" if wrong else INK)  # fmt: skip
    sign = "≤ " if row["measure"] == STORAGE and row["loss"] else ""
    axis.text(x, y, f"{sign}{row['model']:.{digits}f}", ha="right", va="center", color=SOFT)


def _rate_name(rate: tuple[int, int], sites: int) -> str:
    kw, kr = rate
    if kw > 1:
        return f"1 transfer per {kw} acks"
    if kr > 1:
        return f"{kr} transfers per ack" + ("  (N − 1)" if kr == sites - 1 else "")
    return "1 transfer per ack"


# -- TO and PO ---------------------------------------------------------------------------------

_CLUSTER_MARKS: Final = {
    PO: ("PO", RED, "s", 9.0), TO: ("TO", BLUE, "o", 5.8),
    TO_CHANNEL: ("TO on one channel", GREEN, ".", 3.6),
}  # fmt: skip
"""One inside the other: they fall on the same points."""


def complexity(rows: Sequence[Row]) -> Any:
    """PDUs, and delay in slots and rounds, against the number of entities."""
    figure = Figure(figsize=(11.2, 4.9))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.055, right=0.9, top=0.82, bottom=0.19, wspace=0.46)
    figure.suptitle("What an isolated broadcast costs in a cluster", x=0.012, ha="left",
                    fontsize=14, fontweight="bold", y=0.975)  # fmt: skip
    sizes = sorted({row["sites"] for row in rows})
    low, high = sizes[0], sizes[-1]
    best = [3 if n == 2 else 2 * n for n in sizes]
    worst = [n * n - n + 1 for n in sizes]
    for axis, measure, title in (
        (left, PDUS, "PDUs transmitted"), (right, SLOTS, "delay until acknowledged everywhere"),
    ):  # fmt: skip
        axis.plot(sizes, worst, color=SOFT, lw=1.4, ls=(0, (6, 3)))
        axis.plot(sizes, best, color=SOFT, lw=1.4)
        for protocol, (name, colour, marker, size) in _CLUSTER_MARKS.items():
            here = [r for r in rows if r["protocol"] == protocol and r["measure"] == measure]
            _cluster_marks(axis, here, colour, marker, size, name)
        axis.set_title(title)
        axis.set_xlabel("entities, n")
        axis.set_xlim(low - 0.3, high + 0.25)
        axis.set_xticks([n for n in sizes if n % 2 == 0])
    right.plot(sizes, [3] * len(sizes), color=SOFT, lw=1.4, ls=(0, (1.2, 1.6)))
    for protocol, (_, colour, marker, size) in _CLUSTER_MARKS.items():
        here = [r for r in rows if r["protocol"] == protocol and r["measure"] == ROUNDS]
        _cluster_marks(right, here, colour, marker, size, None)
    left.set_ylabel("PDUs per broadcast")
    right.set_ylabel("slots, rounds")
    for axis in (left, right):
        axis.set_ylim(-0.04 * worst[-1], 1.06 * worst[-1])  # below 0, so that marks at 3 are whole
    _names(left, [(worst[-1], "worst, n² − n + 1", INK), (best[-1], "best, 2n", INK)], high)
    _names(right, [(worst[-1], "serial, worst", INK), (best[-1], "serial, best: 2n", INK),
                   (3, "parallel: 3", INK)], high)  # fmt: skip
    left.legend(loc="upper left", handletextpad=0.3)
    _caption(
        figure,
        "After Nakamura and Takizawa, complexity of TO and PO.  Lines: the paper's counts.  "
        f"Marks: simulation, {_runs(rows)}; every run gives exactly these.\n"
        "Best: acknowledgements wait for each other (deferred); worst: one for every PDU (eager).  "
        "Two entities need 3.",
        rows,
    )
    return figure


def _cluster_marks(axis: Any, rows: Sequence[Row], colour: str, marker: str, size: float,
                   name: str | None) -> None:  # fmt: skip
    axis.plot([r["sites"] for r in rows], [r["mean"] for r in rows], marker, color=colour,
              markersize=size, markerfacecolor=colour if marker == "." else "none",
              markeredgewidth=1.3, label=name, zorder=3, linestyle="none")  # fmt: skip
    off = [row for row in rows if row["verdict"] == OUTSIDE]
    axis.plot([r["sites"] for r in off], [r["mean"] for r in off], "o", color="#c00000",
              markersize=13, markerfacecolor="none", zorder=4)  # fmt: skip


# -- SPO ---------------------------------------------------------------------------------------


def spo1(rows: Sequence[Row]) -> Any:
    """Delay against the number of entities."""
    figure = Figure(figsize=(7.6, 5.0))
    axis = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.76, top=0.87, bottom=0.19)
    figure.suptitle("Delay against the number of entities", x=0.015, ha="left", fontsize=14,
                    fontweight="bold", y=0.975)  # fmt: skip
    rows = [row for row in rows if not row["loss"]]
    sizes = sorted({row["sites"] for row in rows})
    ends = []
    lines: list[tuple[int | None, str, str]] = [
        (None, "all n: 2n", BLUE), (4, "d = 4: 2(d + 1)", GREEN), (2, "d = 2", RED),
        (1, "d = 1", PURPLE),
    ]  # fmt: skip
    for destinations, name, colour in lines:
        here = sorted(
            (r for r in rows if r["destinations"] == destinations and r["measure"] == SLOTS),
            key=lambda r: r["sites"],
        )
        if not here:
            continue
        axis.plot([r["sites"] for r in here], [r["model"] for r in here], color=colour, lw=1.5)
        _points(axis, lambda r: r["sites"], here, colour, size=6.5)
        ends.append((here[-1]["model"], name, colour))
    parallel = sorted(
        (r for r in rows if r["destinations"] is None and r["measure"] == ROUNDS),
        key=lambda r: r["sites"],
    )
    axis.plot(sizes, [3] * len(sizes), color=SOFT, lw=1.4, ls=(0, (1.2, 1.6)))
    _points(axis, lambda r: r["sites"], parallel, SOFT, "+", 8)
    ends.append((3, "parallel channels: 3", "#6a6a6a"))
    axis.set_xlabel("entities, n")
    axis.set_ylabel("slots until acknowledged at all destinations")
    axis.set_xlim(sizes[0] - 0.3, sizes[-1] + 0.25)
    axis.set_ylim(0, 2.12 * sizes[-1])
    _names(axis, ends, sizes[-1])
    _caption(
        figure,
        "After Nakamura, Terauchi and Takizawa, Fig. 1.  A serial channel takes one PDU a slot;\n"
        f"lines: the cost model, crosses: simulation, {_runs(rows)}.",
        rows,
    )
    return figure


def spo2(rows: Sequence[Row]) -> Any:
    """Delay against the chance of loss."""
    figure = Figure(figsize=(7.6, 5.0))
    axis = figure.subplots()
    figure.subplots_adjust(left=0.095, right=0.87, top=0.87, bottom=0.19)
    figure.suptitle("Delay against the probability of PDU loss", x=0.015, ha="left", fontsize=14,
                    fontweight="bold", y=0.975)  # fmt: skip
    sizes = sorted({row["sites"] for row in rows if row["loss"]})
    rows = [
        r
        for r in rows
        if r["sites"] in sizes and r["destinations"] is None and r["measure"] == SLOTS
    ]
    colours = dict(zip(sizes, (BLUE, GREEN, RED, PURPLE, INK) * len(sizes), strict=False))
    ends = []
    for sites in sizes:
        here = sorted((r for r in rows if r["sites"] == sites), key=lambda r: r["loss"])
        axis.plot([r["loss"] for r in here], [r["mean"] for r in here], color=colours[sites],
                  lw=1.2, alpha=0.7)  # fmt: skip
        _points(axis, lambda r: r["loss"], here, colours[sites])
        ends.append((here[-1]["mean"], f"n = {sites}", colours[sites]))
    axis.set_xlabel("probability that an entity loses a PDU")
    axis.set_ylabel("slots until acknowledged at all destinations")
    axis.set_xlim(0, max(row["loss"] for row in rows))
    axis.set_ylim(0, 1.06 * max(map(_reach, rows)))
    _names(axis, ends, max(row["loss"] for row in rows))
    _caption(
        figure,
        "After Nakamura, Terauchi and Takizawa, Fig. 2.  Simulation of a serial channel,\n"
        f"95 % intervals, {_runs(rows)}; without loss 2n slots exactly.",
        rows,
    )
    return figure


# -- any other grid ----------------------------------------------------------------------------


def other(rows: Sequence[Row]) -> Any:
    """PDUs and delay against the loss, a line for each set of the other parameters."""
    figure = Figure(figsize=(11.2, 4.9))
    axes = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.062, right=0.985, top=0.85, bottom=0.2, wspace=0.2)
    figure.suptitle(rows[0]["experiment"], x=0.012, ha="left", fontsize=14, fontweight="bold",
                    y=0.975)  # fmt: skip
    cycle = (BLUE, GREEN, RED, PURPLE, INK, SOFT, "#b8860b", "#d0208f")
    lines: dict[str, list[Row]] = {}
    for row in rows:
        word = f"-loss{row['loss']:g}"
        lines.setdefault(row["point"].replace(word, ""), []).append(row)
    for axis, measure, name in ((axes[0], PDUS, "PDUs per message"),
                                (axes[1], "delay_ms_mean", "mean delay (ms)")):  # fmt: skip
        for place, (key, line) in enumerate(lines.items()):
            here = sorted((r for r in line if r["measure"] == measure), key=lambda r: r["loss"])
            colour = cycle[place % len(cycle)]
            with_model = [r for r in here if r["model"] is not None]
            axis.plot([r["loss"] for r in with_model or here],
                      [r["model"] if with_model else r["mean"] for r in with_model or here],
                      color=colour, lw=1.3, alpha=1 if with_model else 0.5)  # fmt: skip
            label = key if place < 12 else None
            _points(axis, lambda r: r["loss"], here, colour, label=label)
        axis.set_title(name)
        axis.set_xlabel("probability of losing a message")
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="upper left", fontsize=7.5)
    _caption(
        figure, f"Lines: the model where there is one.  Crosses: simulation, {_runs(rows)}.", rows
    )
    return figure
