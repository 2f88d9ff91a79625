"""Space-time diagrams: a window of a trace as an SVG picture.

Time runs from left to right, every site is a lane, every PDU an arrow from its sender's lane at
the time of sending to its receiver's lane at the time of arrival.  A lost copy ends on its way in
a red cross.  A golden band marks the token, a dot a delivery with its position, a flag a notice, a
grey stretch a site that is down.  Quiet time is shortened (`time_axis`).  Hovering over an arrow
shows the PDU's fields and lights up all copies of the transmission.

The picture is one file without scripts or links.  Labels give way to each other: what does not
fit is left out, since the hover text has it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from roundelay.trace.diagram.style import (
    BANDS,
    CHARACTER,
    LABEL_PX,
    RED,
    SIGNS,
    STYLE,
    LabelPlaces,
    colours_of,
)
from roundelay.trace.diagram.time_axis import Axis
from roundelay.trace.diagram.window import (
    DrawnCopy,
    Scene,
    Stretch,
    Transmission,
    Window,
    choose,
    gather,
)
from roundelay.trace.reader import TraceFile
from roundelay.trace.schema import TraceRow

LEFT: Final = 92  # px: room for the names of the sites
RIGHT: Final = 36
TOP: Final = 112  # title, axis
WIDTH: Final = 1560  # px aimed at for the lanes

WORDS: Final = {"count": "messages", "size": "bytes"}
"""What the hover text calls columns that it does not call by their name."""


def draw(
    trace: TraceFile | Path,
    out: Path,
    from_ns: int | None = None,
    to_ns: int | None = None,
    title: str | None = None,
) -> None:
    """Write the diagram of a window of a trace to the file `out`; see `render`."""
    out.write_text(render(trace, from_ns, to_ns, title), encoding="utf-8")


def render(
    trace: TraceFile | Path,
    from_ns: int | None = None,
    to_ns: int | None = None,
    title: str | None = None,
) -> str:
    """The diagram of a window of a trace as SVG text.

    Without a window, one worth looking at is chosen; with one end only, the other is the trace's.
    """
    if isinstance(trace, Path):
        trace = TraceFile(trace)
    if from_ns is None and to_ns is None:
        window = choose(trace)
    else:
        window = Window(
            trace.first_ns if from_ns is None else from_ns,
            trace.last_ns + 1 if to_ns is None else to_ns,
        )
    return _Picture(gather(trace, window), title or _title(trace), _names(trace)).svg()


def _names(trace: TraceFile) -> list[str]:
    """What the sites are called, if the run says so."""
    names = trace.params.get("names")
    return [str(name) for name in names] if isinstance(names, list) else []


def _title(trace: TraceFile) -> str:
    """What the parameters of the run say about it."""
    params = trace.params
    parts = [str(params.get("protocol", "Space-time diagram"))]
    for name, text in (("sites", "{} sites"), ("resilience", "L = {}"), ("seed", "seed {}")):
        if isinstance(params.get(name), int | str):
            parts.append(text.format(params[name]))
    loss = params.get("loss")
    if isinstance(loss, int | float):
        parts.insert(-1 if "seed" in params else len(parts), f"loss {loss:.0%}")
    return " · ".join(parts)


class _Picture:
    """Puts one scene into one SVG; parts are drawn from the back to the front."""

    def __init__(self, scene: Scene, title: str, names: Sequence[str] = ()) -> None:
        self.scene = scene
        self.names = names
        self.title = title
        count = len(scene.sites)
        self.lane_px = 84 if count <= 6 else 64 if count <= 12 else 46
        self.y = {site: TOP + 30 + i * self.lane_px for i, site in enumerate(scene.sites)}
        self.bottom = TOP + 30 + max(0, count - 1) * self.lane_px + 34
        transits = [
            copy.time - transmission.row.time
            for transmission in scene.transmissions
            for copy in transmission.copies
            if not copy.lost and copy.time > transmission.row.time
        ]
        span = scene.to_ns - scene.from_ns
        self.transit = int(median(transits)) if transits else max(1, span // 40)
        # A submission happens in an application: no reason to stretch the network's time.
        times = [row.time for row in scene.events if row.event != "SUBMIT"]
        for transmission in scene.transmissions:
            times.append(transmission.row.time)
            times += [self._end(transmission, copy) for copy in transmission.copies]
        for stretch in scene.stretches:
            times += (stretch.start, stretch.end)
        self.skip_ns = -1  # where the stretch begins that is left out
        if scene.skip_to:
            times = [t for t in times if not scene.skip_from < t < scene.skip_to]
            self.skip_ns = max((t for t in times if t <= scene.skip_from), default=scene.from_ns)
        self.axis = Axis(times, scene.from_ns, scene.to_ns, self.transit, left=LEFT, width=WIDTH)
        self.places = LabelPlaces(LEFT - 4, self.axis.right + RIGHT - 6)
        self.kinds = Counter(transmission.row.kind for transmission in scene.transmissions)
        self.colours = colours_of(self.kinds)
        self.marks = {row.event for row in scene.events}
        self.marks |= {row.kind for row in scene.events if row.event == "NOTICE"}
        self.marks |= {stretch.state for stretch in scene.stretches}
        if scene.lost:
            self.marks.add("lost")
        self.parts: list[str] = []

    def svg(self) -> str:
        width = max(900, self.axis.right + RIGHT)
        self._heading()
        self._breaks_and_ticks()
        self.parts.append('<g clip-path="url(#plot)">')
        self._lanes()
        self._arrows()
        self.parts.append("</g>")
        self._events()
        self._names()
        height = self._legend(width)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>{self._definitions()}"
            f'<rect width="100%" height="100%" fill="#fff"/>'
        )
        return head + "\n".join(self.parts) + "</svg>\n"

    # -- frame -----------------------------------------------------------------------------

    def _definitions(self) -> str:
        heads = "".join(
            f'<marker id="a{i}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="8" '
            f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M0,0.8L8,4L0,7.2L2,4z" fill="{colour}"/></marker>'
            for i, colour in enumerate(self.colours.values())
        )
        clip = (
            f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP - 4}" '
            f'width="{self.axis.right - LEFT:.1f}" height="{self.bottom - TOP + 4:.1f}"/>'
            "</clipPath>"
        )
        hatch = "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({angle})"><rect width="6" height="6" fill="#fafafa"/>'
            f'<line x1="0" y1="0" x2="0" y2="6" stroke="{colour}" stroke-width="3"/></pattern>'
            for name, angle, colour in (("quiet", 45, "#e9e9e9"), ("skip", -45, "#c9c9c9"))
        )
        return f"<defs>{heads}{clip}{hatch}</defs>"

    def _heading(self) -> None:
        scene = self.scene
        self._text(20, 30, self.title, "h")
        lost = f", {scene.lost} of them lost" if scene.lost else ""
        sub = (
            f"{_ms(scene.from_ns)} to {_ms(scene.to_ns)} ms  ·  "
            f"{len(scene.transmissions)} PDUs, {scene.arrows} copies{lost}"
        )
        if self.axis.breaks:
            sub += "  ·  hatched: quiet time, shortened"
        self._text(20, 50, sub, "sub")
        if scene.cut:
            self.parts.append(
                f'<text x="20" y="68" class="sub" style="fill:{RED}">{escape(scene.cut)}</text>'
            )

    def _breaks_and_ticks(self) -> None:
        axis = self.axis
        skip_x = axis.x(self.skip_ns)
        for x0, x1, length in sorted(axis.breaks, key=lambda stretch: abs(stretch[0] - skip_x)):
            skip = self.skip_ns >= 0 and abs(x0 - skip_x) < 1
            self.parts.append(
                f'<rect x="{x0:.1f}" y="{TOP}" width="{x1 - x0:.1f}" '
                f'height="{self.bottom - TOP:.1f}" fill="url(#{"skip" if skip else "quiet"})"/>'
            )
            text = f"{_short_ms(length)} ms"
            if skip:
                text += f", {self.scene.skipped} PDUs left out"
            self._label(text, [((x0 + x1) / 2, self.bottom + 12, "middle")], "q")
        for x, label in axis.ticks():
            self.parts.append(f'<line {self._across(x)} stroke="#ececec"/>')
            self._label(label, [(x, TOP - 10, "middle")], "tick", size=12)
        self._text(LEFT - 12, TOP - 10, "ms", "tick", "end")

    def name(self, site: int) -> str:
        """How a site is called: by its name, or by its number."""
        return f"site {self.names[site] if 0 <= site < len(self.names) else site}"

    def _names(self) -> None:
        for site, y in self.y.items():
            self._text(LEFT - 14, y + 4.5, self.name(site), "site", "end")

    def _lanes(self) -> None:
        left, right = self.axis.left, self.axis.right
        for y in self.y.values():
            self.parts.append(
                f'<line x1="{left}" y1="{y}" x2="{right:.1f}" y2="{y}" stroke="#9a9a9a"/>'
            )
        for stretch in self.scene.stretches:
            if stretch.site in self.y and stretch.state in BANDS:
                self._band(stretch)

    def _band(self, stretch: Stretch) -> None:
        """A stretch of a lane in which its site holds the token, or is down."""
        x0, x1, y = self.axis.x(stretch.start), self.axis.x(stretch.end), self.y[stretch.site]
        half, radius, fill, opacity, state, word = BANDS[stretch.state]
        self.parts.append(
            f'<rect x="{x0:.1f}" y="{y - half}" width="{max(2.0, x1 - x0):.1f}" '
            f'height="{2 * half}" rx="{radius}" fill="{fill}" opacity="{opacity}">'
            f"<title>{self.name(stretch.site)} {state}\n"
            f"{_ms(stretch.since)} to {_ms(stretch.end)} ms</title></rect>"
        )
        if word and stretch.since < self.scene.from_ns:
            word += f" since {_ms(stretch.since)} ms"
        if word and x1 - x0 > len(word) * 7:
            self._label(word, [(x0 + 8, y + 3.5, "start")])

    # -- PDUs ------------------------------------------------------------------------------

    def _end(self, transmission: Transmission, copy: DrawnCopy) -> int:
        """When a copy arrives.  One that was lost on leaving would have taken the usual time."""
        if copy.lost and copy.time <= transmission.row.time:
            return transmission.row.time + self.transit
        return copy.time

    def _arrows(self) -> None:
        numbers = {kind: i for i, kind in enumerate(self.colours)}
        for transmission in self.scene.transmissions:
            row = transmission.row
            if row.site not in self.y:
                continue
            colour = self.colours[row.kind]
            x0, y0 = self.axis.x(row.time), self.y[row.site]
            lines = [
                self._arrow(transmission, copy, x0, y0, numbers[row.kind])
                for copy in transmission.copies
                if copy.site in self.y
            ]
            self.parts.append(
                f'<g class="p" stroke="{colour}">'
                f"<title>{escape(_hover(transmission, self.name))}</title>{''.join(lines)}</g>"
            )

    def _arrow(
        self, transmission: Transmission, copy: DrawnCopy, x0: float, y0: float, number: int
    ) -> str:
        x1, y1 = self.axis.x(self._end(transmission, copy)), self.y[copy.site]
        if not copy.lost:
            return (
                f'<line class="hit" x1="{x0:.1f}" y1="{y0}" x2="{x1:.1f}" y2="{y1}"/>'
                f'<line x1="{x0:.1f}" y1="{y0}" x2="{x1:.1f}" y2="{y1}" '
                f'marker-end="url(#a{number})"/>'
            )
        # Down to the lane if nobody was there, else to somewhere on the way.
        share = 0.9 if copy.lost in ("down", "paused") else 0.62
        x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
        return (
            f'<line x1="{x0:.1f}" y1="{y0}" x2="{x:.1f}" y2="{y:.1f}" stroke-dasharray="3 3"/>'
            f'<path d="M{x - 3.5:.1f},{y - 3.5:.1f}l7,7m0,-7l-7,7" stroke="{RED}" '
            f'stroke-width="1.8"/>'
        )

    def _pdu_labels(self) -> None:
        last = None
        for transmission in self.scene.transmissions:
            row = transmission.row
            x, y = self.axis.x(row.time), self.y.get(row.site)
            if y is None or not self.axis.left <= x <= self.axis.right:
                continue
            text = _short(row)
            if last == (row.site, row.time, text):
                continue  # the same to several sites, one by one
            last = (row.site, row.time, text)
            spots = [(x - 3, y - 9, "end"), (x - 3, y + 17, "end"), (x + 5, y - 9, "start")]
            self._label(text, spots, fill=self.colours[row.kind])

    # -- events ----------------------------------------------------------------------------

    def _events(self) -> None:
        strikes = [row for row in self.scene.events if row.event in ("CRASH", "PAUSE")]
        struck = {(row.site, row.time) for row in strikes}
        for row in self.scene.events:
            if row.event == "FAULT" and (row.site, row.time) in struck:
                continue  # the fault is what is marked there anyway
            if row.site not in self.y:
                self._line_across(row)
            elif row.event == "NOTICE":
                self._flag(row)
            elif row.event in ("CRASH", "RESTART", "PAUSE", "RESUME", "FAULT"):
                self._state_mark(row)
        self._deliveries()
        for row in self.scene.events:
            if row.event == "SUBMIT" and row.site in self.y:
                x, y = self.axis.x(row.time), self.y[row.site]
                self.parts.append(
                    f'<path d="M{x:.1f},{y - 3}l-3.5,-7h7z" fill="#fff" stroke="#555">'
                    f"<title>{self.name(row.site)} submits {row.count} message(s), from its "
                    f"{row.ref}. on\n{_ms(row.time)} ms</title></path>"
                )
        self._pdu_labels()

    def _deliveries(self) -> None:
        """A dot per site and instant, with the positions delivered there."""
        together: dict[tuple[int, int, str], list[TraceRow]] = {}
        for row in self.scene.events:
            if row.event == "DELIVER" and row.site in self.y:
                together.setdefault((row.site, row.time, row.kind), []).append(row)
        for (site, time, stage), rows in together.items():
            x, y = self.axis.x(time), self.y[site]
            lo = rows[0].seq
            hi = rows[-1].seq + max(1, rows[-1].count) - 1
            text = f"{rows[0].source}:{rows[0].number}" if lo < 0 else _span(lo, hi)
            fill = "#fff" if stage == "stamped" else "#111"
            self.parts.append(
                f'<circle cx="{x:.1f}" cy="{y}" r="3.6" fill="{fill}" stroke="#111">'
                f"<title>{self.name(site)} delivers {escape(text)} ({escape(stage)})\n"
                + "\n".join(f"number {r.number} of source {r.source}" for r in rows[:12])
                + f"\n{_ms(time)} ms</title></circle>"
            )
            self._label(text, [(x, y + 16, "middle"), (x + 2, y - 9, "start")])

    def _flag(self, row: TraceRow) -> None:
        x, y = self.axis.x(row.time), self.y[row.site]
        view = row.kind == "view"
        text = f"list {row.tl_version}.{row.tl_site}" if view else row.kind.replace("_", " ")
        colour = "#0b6e4f" if view else "#7a4b00"
        width = len(text) * 10 * CHARACTER + 8
        hover = f"{self.name(row.site)}: {row.kind} {row.info}\n{_ms(row.time)} ms"
        room = self.places.take_box(x, y - 30, x + width, y - 16)
        cloth = (
            f'<rect x="{x:.1f}" y="{y - 30}" width="{width:.1f}" height="14" rx="2" '
            f'fill="{colour}"/><text x="{x + 4:.1f}" y="{y - 19.5}" font-size="10" '
            f'fill="#fff">{escape(text)}</text>'
            if room
            else f'<path d="M{x:.1f},{y - 30}l8,4l-8,4z" fill="{colour}"/>'
        )
        self.parts.append(
            f"<g><title>{escape(hover)}</title>"
            f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y - 30}" stroke="{colour}"/>'
            f"{cloth}</g>"
        )

    def _state_mark(self, row: TraceRow) -> None:
        x, y = self.axis.x(row.time), self.y[row.site]
        word = row.kind if row.event == "FAULT" else row.event.lower()
        if row.event == "CRASH":
            mark = (
                f'<path d="M{x - 6:.1f},{y - 6}l12,12m0,-12l-12,12" stroke="#000" '
                f'stroke-width="3" stroke-linecap="round"/>'
            )
        elif row.event == "RESTART":
            mark = f'<path d="M{x - 5:.1f},{y - 7}v14l11,-7z" fill="#0b6e4f"/>'
        else:
            mark = f'<path d="M{x:.1f},{y - 8}v16" stroke="#555" stroke-width="3"/>'
        keeps = f" ({row.kind})" if row.event in ("CRASH", "RESTART") and row.kind else ""
        hover = f"{self.name(row.site)}: {word}{keeps}\n{_ms(row.time)} ms"
        self.parts.append(f"<g><title>{escape(hover)}</title>{mark}</g>")
        self._label(word, [(x, y - 12, "middle"), (x, y + 20, "middle")])

    def _line_across(self, row: TraceRow) -> None:
        """Something that concerns everybody: a phase, a fault of the network."""
        x = self.axis.x(row.time)
        self.parts.append(
            f'<line {self._across(x)} stroke="#666" stroke-dasharray="6 4">'
            f"<title>{escape(row.kind)}\n{_ms(row.time)} ms</title></line>"
        )
        self._label(row.kind, [(x + 4, self.bottom - 4, "start")])

    def _across(self, x: float) -> str:
        """The ends of a line across all lanes."""
        return f'x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{self.bottom:.1f}"'

    # -- legend ----------------------------------------------------------------------------

    def _legend(self, width: float) -> float:
        """Two lines of what is what; returns the height of the picture."""
        x, y = 20.0, self.bottom + 42
        for kind, colour in self.colours.items():
            text = f"{kind} ({self.kinds[kind]})"
            x, y, after = _legend_place(x, y, 46 + len(text) * 7.4, width)
            self.parts.append(
                f'<line x1="{x:.0f}" y1="{y - 4}" x2="{x + 24:.0f}" y2="{y - 4}" '
                f'stroke="{colour}" stroke-width="2.5"/>'
            )
            self._text(x + 30, y, text, "leg")
            x = after
        x, y = 20.0, y + 26
        for mark, sign, text in SIGNS:
            if mark in self.marks:
                x, y, after = _legend_place(x, y, 48 + len(text) * 6.6, width)
                self.parts.append(f'<g transform="translate({x:.0f},{y - 4})">{sign}</g>')
                self._text(x + 30, y, text, "leg")
                x = after
        return y + 22

    def _label(
        self,
        text: str,
        spots: Iterable[tuple[float, float, str]],
        kind: str = "l",
        fill: str = "",
        size: float = LABEL_PX,
    ) -> None:
        """Write `text` at the first (x, y, anchor) where there is room, if there is one."""
        for x, y, anchor in spots:
            if self.places.take(x, y, text, anchor, size):
                self._text(x, y, text, kind, anchor, fill)
                return

    def _text(
        self, x: float, y: float, text: str, kind: str, anchor: str = "start", fill: str = ""
    ) -> None:
        end = "" if anchor == "start" else f' text-anchor="{anchor}"'
        colour = f' fill="{fill}"' if fill else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{end}{colour}>{escape(text)}</text>'
        )


def _legend_place(x: float, y: int, need: float, width: float) -> tuple[float, int, float]:
    """Where an entry of the legend goes, in the next line if need be, and where it ends."""
    if x + need > width:
        x, y = 20.0, y + 22
    return x, y, x + need


def _short(row: TraceRow) -> str:
    """A PDU in a few characters."""
    if row.kind in ("ACK", "RETX_ACK") and row.ts >= 0:
        name = "NULL" if '"kind":0' in row.info else row.kind
        return f"{name} {row.ts}" + (f"→{row.next}" if row.next >= 0 else "")
    if row.ts >= 0:
        return f"{row.kind} {row.ts}"
    if row.number >= 0:
        return f"{row.kind} {row.source}:{row.number}"
    if row.tl_version >= 0:
        return f"{row.kind} {row.tl_version}.{row.tl_site}"
    return row.kind


def _hover(transmission: Transmission, name: Callable[[int], str]) -> str:
    """All there is to say about a transmission."""
    row = transmission.row
    to = "everyone" if row.peer < 0 else name(row.peer)
    lines = [f"{row.kind}: {name(row.site)} to {to}, sent {_ms(row.time)} ms"]
    columns = ("ts", "source", "number", "by", "next", "seq", "count", "size")
    values = {column: getattr(row, column) for column in columns}
    fields = [f"{WORDS.get(key, key)} {value}" for key, value in values.items() if value >= 0]
    if row.tl_version >= 0:
        fields.insert(0, f"list {row.tl_version}.{row.tl_site}")
    if row.info:
        fields.append(row.info.strip("{}").replace('"', "").replace(":", " ").replace(",", ", "))
    if fields:
        lines.append(", ".join(fields))
    for copy in sorted(transmission.copies, key=lambda copy: copy.site):
        fate = f"lost ({copy.lost})" if copy.lost else f"arrives {_ms(copy.time)} ms"
        lines.append(f"{name(copy.site)}: {fate}")
    return "\n".join(lines)


def _span(lo: int, hi: int) -> str:
    return str(lo) if hi <= lo else f"{lo}–{hi}"


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.3f}"


def _short_ms(length_ns: int) -> str:
    return f"{length_ns / 1e6:.0f}" if length_ns >= 10_000_000 else f"{length_ns / 1e6:.1f}"
