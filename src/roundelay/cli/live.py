"""What the demo looks like while it runs."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roundelay.core.engine import SECOND
from roundelay.runs.demo import Demo, SiteView, letter

COLOURS: Final = ("cyan", "white", "magenta", "yellow", "white")
"""Of the messages, by sender."""

EVENTS: Final = 6
WIDTH: Final = 116
NARROW: Final = 96
"""Below this the lists of members are left out."""


def frame(demo: Demo, width: int = WIDTH) -> RenderableType:
    """One picture of the demo, for a terminal of this width."""
    width = min(width - 1, WIDTH)
    return Group(
        _head(demo), _sites(demo, width), _order(demo, width), _events(demo, width),
        _counters(demo),
    )  # fmt: skip


def _head(demo: Demo) -> RenderableType:
    text = Text()
    text.append(" Roundelay ", style="bold reverse")
    text.append(f"  {demo.world.now / SECOND:6.2f} s  ", style="bold")
    text.append(demo.story.headline, style="bold yellow" if demo.victim >= 0 else "bold")
    return Group(Text(), text, Text())


def _sites(demo: Demo, width: int) -> RenderableType:
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=False)
    wide = width >= NARROW
    columns = [("", 8, "left"), ("", 6, "left"), ("sends", 5, "left"), ("token", 11, "left")]
    if wide:
        columns.append(("list: members", 16, "left"))
    columns += [("delivered", 9, "right"), ("latest messages", 40 if wide else 22, "left")]
    for name, room, justify in columns:
        grid.add_column(name, width=room, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for view in demo.views():
        sends = ""
        if view.site in demo.params.senders:
            sends = f"{letter(view.site)}1 …"
        cells: list[str | Text] = [
            f"site {view.site}",
            Text("● up", style="green") if view.up else Text("✗ down", style="bold red"),
            Text(sends, style=COLOURS[view.site % len(COLOURS)]),
            _role(view),
        ]
        if wide:
            cells.append(_list(view))
        cells += [str(view.delivered), _names(view.recent[-(8 if wide else 4) :])]
        grid.add_row(*cells)
    return grid


def _role(view: SiteView) -> Text:
    if view.role == "token":
        return Text("★ token", style="bold yellow")
    if view.role == "passing on":
        return Text("☆ passing", style="yellow")
    if view.role == "reforming":
        return Text("… reforming", style="bold blue")
    return Text("")


def _list(view: SiteView) -> Text:
    if not view.list_name:
        return Text("")
    return Text(f"{view.list_name}: {' '.join(map(str, view.members))}", style="dim")


def _names(names: list[str]) -> Text:
    text = Text()
    for name in names:
        text.append(f"{name} ", style=COLOURS[(ord(name[0]) - ord("a")) % len(COLOURS)])
    return text


def _order(demo: Demo, width: int) -> RenderableType:
    order = demo.story.order
    shown = 3 * (width - 24) // 5  # three lines of names, whatever their lengths
    skipped = max(0, len(order) - shown)
    text = Text(f"… {skipped} before …  " if skipped else "", style="dim")
    text = Text.assemble(text, _names(order[skipped:]))
    title = f"the agreed order: {len(order)} messages"
    return Panel(text, title=title, title_align="left", width=width, height=5, border_style="dim")


def _events(demo: Demo, width: int) -> RenderableType:
    text = Text()
    events = list(demo.story.events)[-EVENTS:]
    for at, what in events:
        text.append(f"{at / SECOND:7.3f} s  ", style="dim")
        text.append(f"{what}\n")
    return Panel(text, title="what happens", title_align="left", width=width, height=EVENTS + 2,
                 border_style="dim")  # fmt: skip


def _counters(demo: Demo) -> RenderableType:
    text = Text(" ")
    kinds = sorted(demo.pdus_by_kind.items(), key=lambda pair: -pair[1])
    text.append(f"{demo.world.sent} PDUs", style="bold")
    text.append("  " + "  ".join(f"{kind} {count}" for kind, count in kinds[:8]), style="dim")
    lost = demo.world.faults.get("loss", 0)
    text.append(f"   {lost} copies lost", style="red")
    return text
