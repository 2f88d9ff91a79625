"""The papers' figures, drawn from judged rows: lines are models, crosses are simulations.

CM84 draws its predictions as lines and its simulations as X's; so do we, with the 95 % interval of
each as a bar, and a ring around what lies outside the tolerance.  Lines are named where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
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
WRONG: Final = "#c00000"
SHRINK: Final = {"shrinkA": 1, "shrinkB": 1}
RING: Final[Any] = {
    "marker": "o",
    "color": WRONG,
    "markerfacecolor": "none",
    "linestyle": "none",
    "zorder": 4,
}
DASHED, DOTTED = (0, (6, 3)), (0, (1.2, 1.6))
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


def save(draw: Callable[[Sequence[Row]], Any], rows: Sequence[Row], path: str) -> None:
    """Draw it, as PNG and as SVG; without a date, so that the same figure is the same file."""
    with mpl.rc_context(LOOK):
        figure = draw(rows)
        figure.savefig(f"{path}.png", metadata={"Software": None})
        figure.savefig(f"{path}.svg", metadata={"Date": None, "Creator": "roundelay figures"})


# -- pieces ------------------------------------------------------------------------------------


def _figure(
    title: str, size: tuple[float, float], shape: tuple[int, int], **margins: float
) -> tuple[Any, Any]:
    """A figure with its title, and its axes in rows and columns."""
    figure = Figure(figsize=size)
    axes = figure.subplots(*shape, squeeze=False)
    figure.subplots_adjust(**margins)
    wide = size[0] > 10
    place = {"x": 0.012 if wide else 0.015, "y": 0.985 if shape == (2, 2) else 0.975}
    figure.suptitle(title, **place, ha="left", fontsize=14, fontweight="bold")
    return figure, axes


def _points(
    axis: Any,
    x: str,
    rows: Sequence[Row],
    colour: str,
    marker: Any = "x",
    size: float = 5.5,
    label: str | None = None,
) -> None:
    """Means with their intervals, against the column `x`."""
    if not rows:
        return
    xs, means = [row[x] for row in rows], [row["mean"] for row in rows]
    bars = [row["ci95"] or 0.0 for row in rows]
    cut = any(_reach(row) < row["mean"] + bar for row, bar in zip(rows, bars, strict=True))
    bar = {"fmt": "none", "ecolor": colour, "elinewidth": 1.3, "capsize": 0}
    axis.errorbar(xs, means, yerr=bars, zorder=3, clip_on=cut, **bar)
    mark = {"marker": marker, "color": colour, "markersize": size, "markeredgewidth": 1.4}
    axis.plot(xs, means, **mark, linestyle="none", zorder=3, label=label, clip_on=False)
    _rings(axis, x, rows, markersize=12, markeredgewidth=1.2)


def _rings(axis: Any, x: str, rows: Sequence[Row], **ring: float) -> None:
    """What is outside the tolerance gets a ring."""
    off = [row for row in rows if row["verdict"] == OUTSIDE]
    _line(axis, x, off, "mean", **RING, **ring)


def _line(axis: Any, x: str, rows: Sequence[Row], y: str, **style: Any) -> None:
    if rows:
        axis.plot([row[x] for row in rows], [row[y] for row in rows], **style)


def _of(rows: Iterable[Row], by: str = "", **values: Any) -> list[Row]:
    """The rows with these values, in the order of a column."""
    chosen = [row for row in rows if all(row[key] == value for key, value in values.items())]
    return sorted(chosen, key=lambda row: row[by]) if by else chosen


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
        pointer = {"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.55}
        axis.annotate(
            text,
            (x, y),
            (1.035, at),
            textcoords="axes fraction",
            color=colour,
            va="center",
            fontsize=8.5,
            annotation_clip=False,
            arrowprops=pointer | SHRINK if abs(here - y) > 0.008 * span else None,
        )


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
    each, many = (
        f"{some[0]:,}" if len(some) == 1 else f"{some[0]:,}–{some[-1]:,}"
        for some in (counts, messages)
    )
    return f"{each} runs a point, {many} messages a run"


# -- CM84 Fig. 6 -------------------------------------------------------------------------------


def fig6(rows: Sequence[Row]) -> Any:
    """Messages per broadcast against the chance of loss, four panels."""
    title = "Messages per broadcast when messages are lost"
    margins = {"left": 0.062, "right": 0.895, "top": 0.905, "bottom": 0.1}
    figure, axes = _figure(title, (11.2, 8.6), (2, 2), wspace=0.38, hspace=0.3, **margins)
    panels = (
        ("(a)  3 sites, L = 1", 3, (1,)),
        ("(b)  10 sites, L = 1", 10, (1,)),
        ("(c)  30 sites, L = 1", 30, (1,)),
        ("(d)  10 sites, L = 1, 2 and 4", 10, (1, 2, 4)),
    )
    for axis, (title, sites, levels) in zip(axes.flat, panels, strict=True):
        _fig6_panel(axis, _of(rows, sites=sites), sites, levels)
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
    axis.plot(grid, positive, color=SOFT, lw=1.5, ls=DASHED)
    _points(axis, "loss", _of(rows, protocol=POSITIVE_ACK), SOFT)
    ends.append((positive[-1], "positive ack", "#6a6a6a"))
    for tau, colour in TAU_COLOURS.items():
        for level in levels:
            line = [cost.x_p_token(sites, level, tau, p) for p in grid]
            axis.plot(grid, line, color=colour, lw=1.5, ls=_LINE_OF_LEVEL[level])
            here = _of(rows, protocol=TOKEN, tau=tau, resilience=level)
            _points(axis, "loss", here, colour, _MARKER_OF_LEVEL[level])
            if len(levels) == 1:
                ends.append((line[-1], f"τ = {tau:g}", colour))
            elif tau < 10:
                ends.append((line[-1], f"τ = {tau:g}, L = {level}", colour))
        if len(levels) > 1 and tau >= 10:
            ends.append((line[-1], f"τ = {tau:g}, any L", colour))
    top = max([positive[-1], *(cost.x_p_token(sites, max(levels), 0.1, p) for p in grid)])
    axis.set(xlim=(0, right), ylim=(0, 1.06 * max([top, *map(_reach, rows)])))
    axis.set_xticks([0, 0.05, 0.1, 0.15, 0.2] if right == 0.2 else losses)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    _names(axis, ends, right)


# -- CM84 Table I ------------------------------------------------------------------------------


def table1(rows: Sequence[Row]) -> Any:
    """Control messages and storage by transfer rate: the paper's, and measured ones."""
    sizes = sorted({row["sites"] for row in rows})
    height = 1.1 + 2.15 * len(sizes)
    margins = {"left": 0.02, "right": 0.98, "top": 1 - 0.75 / height, "bottom": 0.125}
    title = "Control messages against storage"
    figure, axes = _figure(title, (9.6, height), (len(sizes), 1), hspace=0.12, **margins)
    for axis, sites in zip(axes.flat, sizes, strict=True):
        _table1_of(axis, _of(rows, sites=sites), sites)
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
    axis.set(xlim=(0, 1), ylim=(0, 1))
    rates = sorted({(row["kw"], row["kr"]) for row in rows}, key=lambda r: (-r[0], r[1]))
    columns = (
        (0.42, "control, busy", ("saturated", 0.0, CONTROL)),
        (0.61, "control, idle", ("isolated", 0.0, CONTROL)),
        (0.8, "storage", ("saturated", 0.0, STORAGE)),
        (0.995, "storage, 10 % lost", ("saturated", 0.1, STORAGE)),
    )
    axis.text(0.005, 0.93, f"{sites} sites", fontweight="bold", fontsize=10.5, va="center")
    for x, head, _ in columns:
        axis.text(x, 0.93, head, ha="right", va="center", color="#555555", fontsize=9)
    axis.plot([0, 1], [0.86, 0.86], color=INK, lw=1.1)
    height = 0.86 / max(1, len(rates))
    for place, (kw, kr) in enumerate(rates):
        y = 0.86 - height * (place + 0.5)
        axis.text(0.005, y, _rate_name(kw, kr, sites), va="center")
        for x, _, (load, loss, measure) in columns:
            for cell in _of(rows, kw=kw, kr=kr, load=load, loss=loss, measure=measure)[:1]:
                _table1_cell(axis, x, y, cell)
        axis.plot([0, 1], [y - height / 2] * 2, color="#dddddd", lw=0.7)


def _table1_cell(axis: Any, x: float, y: float, row: Row) -> None:
    digits = 0 if row["measure"] == STORAGE else 2
    measured = {"fontweight": "bold", "color": WRONG if row["verdict"] == OUTSIDE else INK}
    axis.text(x - 0.068, y, f"{row['mean']:.{digits}f}", ha="right", va="center", **measured)
    sign = "≤ " if row["measure"] == STORAGE and row["loss"] else ""
    axis.text(x, y, f"{sign}{row['model']:.{digits}f}", ha="right", va="center", color=SOFT)


def _rate_name(kw: int, kr: int, sites: int) -> str:
    if kw > 1:
        return f"1 transfer per {kw} acks"
    if kr > 1:
        return f"{kr} transfers per ack" + ("  (N − 1)" if kr == sites - 1 else "")
    return "1 transfer per ack"


# -- TO and PO ---------------------------------------------------------------------------------

_CLUSTER_MARKS: Final = {
    PO: ("PO", RED, "s", 9.0),
    TO: ("TO", BLUE, "o", 5.8),
    TO_CHANNEL: ("TO on one channel", GREEN, ".", 3.6),
}
"""One inside the other: they fall on the same points."""


def complexity(rows: Sequence[Row]) -> Any:
    """PDUs, and delay in slots and rounds, against the number of entities."""
    margins = {"left": 0.055, "right": 0.9, "top": 0.82, "bottom": 0.19, "wspace": 0.46}
    title = "What an isolated broadcast costs in a cluster"
    figure, axes = _figure(title, (11.2, 4.9), (1, 2), **margins)
    left, right = axes.flat
    sizes = sorted({row["sites"] for row in rows})
    low, high = sizes[0], sizes[-1]
    best = [3 if n == 2 else 2 * n for n in sizes]
    worst = [n * n - n + 1 for n in sizes]
    for axis, measure in ((left, PDUS), (right, SLOTS)):
        axis.plot(sizes, worst, color=SOFT, lw=1.4, ls=DASHED)
        axis.plot(sizes, best, color=SOFT, lw=1.4)
        _cluster_marks(axis, _of(rows, measure=measure), named=True)
        axis.set(xlabel="entities, n", xlim=(low - 0.3, high + 0.25))
        axis.set_xticks([n for n in sizes if n % 2 == 0])
    right.plot(sizes, [3] * len(sizes), color=SOFT, lw=1.4, ls=DOTTED)
    _cluster_marks(right, _of(rows, measure=ROUNDS), named=False)
    left.set(title="PDUs transmitted", ylabel="PDUs per broadcast")
    right.set(title="delay until acknowledged everywhere", ylabel="slots, rounds")
    for axis in (left, right):
        axis.set_ylim(-0.04 * worst[-1], 1.06 * worst[-1])  # below 0, so that marks at 3 are whole
    _names(left, [(worst[-1], "worst, n² − n + 1", INK), (best[-1], "best, 2n", INK)], high)
    serial = [(worst[-1], "serial, worst", INK), (best[-1], "serial, best: 2n", INK)]
    _names(right, [*serial, (3, "parallel: 3", INK)], high)
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


def _cluster_marks(axis: Any, rows: Sequence[Row], *, named: bool) -> None:
    for protocol, (name, colour, marker, size) in _CLUSTER_MARKS.items():
        here = _of(rows, protocol=protocol)
        fill = colour if marker == "." else "none"
        mark = {"marker": marker, "color": colour, "markersize": size, "markerfacecolor": fill}
        mark |= {"markeredgewidth": 1.3, "linestyle": "none", "zorder": 3}
        _line(axis, "sites", here, "mean", **mark, label=name if named else None)
        _rings(axis, "sites", here, markersize=13)


# -- SPO ---------------------------------------------------------------------------------------

UNTIL_ACKNOWLEDGED: Final = "slots until acknowledged at all destinations"


def spo1(rows: Sequence[Row]) -> Any:
    """Delay against the number of entities."""
    margins = {"left": 0.085, "right": 0.76, "top": 0.87, "bottom": 0.19}
    title = "Delay against the number of entities"
    figure, axes = _figure(title, (7.6, 5.0), (1, 1), **margins)
    axis = axes[0, 0]
    rows = [row for row in rows if not row["loss"]]
    sizes = sorted({row["sites"] for row in rows})
    ends = []
    lines = (
        (None, "all n: 2n", BLUE),
        (4, "d = 4: 2(d + 1)", GREEN),
        (2, "d = 2", RED),
        (1, "d = 1", PURPLE),
    )
    for destinations, name, colour in lines:
        here = _of(rows, "sites", destinations=destinations, measure=SLOTS)
        if here:
            _line(axis, "sites", here, "model", color=colour, lw=1.5)
            _points(axis, "sites", here, colour, size=6.5)
            ends.append((here[-1]["model"], name, colour))
    axis.plot(sizes, [3] * len(sizes), color=SOFT, lw=1.4, ls=DOTTED)
    _points(axis, "sites", _of(rows, "sites", destinations=None, measure=ROUNDS), SOFT, "+", 8)
    ends.append((3, "parallel channels: 3", "#6a6a6a"))
    axis.set(xlabel="entities, n", ylabel=UNTIL_ACKNOWLEDGED)
    axis.set(xlim=(sizes[0] - 0.3, sizes[-1] + 0.25), ylim=(0, 2.12 * sizes[-1]))
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
    margins = {"left": 0.095, "right": 0.87, "top": 0.87, "bottom": 0.19}
    title = "Delay against the probability of PDU loss"
    figure, axes = _figure(title, (7.6, 5.0), (1, 1), **margins)
    axis = axes[0, 0]
    sizes = sorted({row["sites"] for row in rows if row["loss"]})
    rows = [row for row in _of(rows, destinations=None, measure=SLOTS) if row["sites"] in sizes]
    ends = []
    for sites, colour in zip(sizes, cycle((BLUE, GREEN, RED, PURPLE, INK)), strict=False):
        here = _of(rows, "loss", sites=sites)
        _line(axis, "loss", here, "mean", color=colour, lw=1.2, alpha=0.7)
        _points(axis, "loss", here, colour)
        ends.append((here[-1]["mean"], f"n = {sites}", colour))
    most = max(row["loss"] for row in rows)
    axis.set(xlabel="probability that an entity loses a PDU", ylabel=UNTIL_ACKNOWLEDGED)
    axis.set(xlim=(0, most), ylim=(0, 1.06 * max(map(_reach, rows))))
    _names(axis, ends, most)
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
    margins = {"left": 0.062, "right": 0.985, "top": 0.85, "bottom": 0.2, "wspace": 0.2}
    figure, axes = _figure(rows[0]["experiment"], (11.2, 4.9), (1, 2), **margins)
    colours = (BLUE, GREEN, RED, PURPLE, INK, SOFT, "#b8860b", "#d0208f")
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row["point"].replace(f"-loss{row['loss']:g}", ""), []).append(row)
    measures = ((PDUS, "PDUs per message"), ("delay_ms_mean", "mean delay (ms)"))
    for axis, (measure, name) in zip(axes.flat, measures, strict=True):
        for place, (key, line) in enumerate(lines.items()):
            here = _of(line, "loss", measure=measure)
            colour = colours[place % len(colours)]
            with_model = [row for row in here if row["model"] is not None]
            y, alpha = ("model", 1) if with_model else ("mean", 0.5)
            _line(axis, "loss", with_model or here, y, color=colour, lw=1.3, alpha=alpha)
            _points(axis, "loss", here, colour, label=key if place < 12 else None)
        axis.set(title=name, xlabel="probability of losing a message")
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(loc="upper left", fontsize=7.5)
    _caption(
        figure, f"Lines: the model where there is one.  Crosses: simulation, {_runs(rows)}.", rows
    )
    return figure
