"""What the demo looks like while it runs, in virtual time and with real processes."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roundelay.core.engine import SECOND
from roundelay.runs.demo import Demo, SiteView, letter
from roundelay.runs.live_demo import LiveDemo

COLOURS: Final = ("cyan", "white", "magenta", "yellow", "white")
"""Of the messages, by sender."""

EVENTS: Final = 6
WIDTH: Final = 116
NARROW: Final = 96
"""Below this the lists of members are left out."""
PROCESSES_WIDTH: Final = 104
BAR: Final = 40


def frame(demo: Demo, width: int = WIDTH) -> RenderableType:
    """One picture of the demo, for a terminal of this width."""
    width = min(width - 1, WIDTH)
    headline = Text(demo.story.headline, style="bold yellow" if demo.victim >= 0 else "bold")
    return Group(
        _head(f"{demo.world.now / SECOND:6.2f}", headline),
        _sites(demo, width),
        _order(demo, width),
        _events(_story(demo), width),
        _counters(demo),
    )


def _head(seconds: str, headline: Text) -> RenderableType:
    text = Text.assemble((" Roundelay ", "bold reverse"), (f"  {seconds} s  ", "bold"), headline)
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


def _story(demo: Demo) -> Text:
    text = Text()
    for at, what in list(demo.story.events)[-EVENTS:]:
        text.append(f"{at / SECOND:7.3f} s  ", style="dim")
        text.append(f"{what}\n")
    return text


def _events(text: Text, width: int) -> RenderableType:
    options = {"title_align": "left", "border_style": "dim", "height": EVENTS + 2}
    return Panel(text, title="what happens", width=width, **options)  # type: ignore[arg-type]


def _counters(demo: Demo) -> RenderableType:
    text = Text(" ")
    kinds = sorted(demo.pdus_by_kind.items(), key=lambda pair: -pair[1])
    text.append(f"{demo.world.sent} PDUs", style="bold")
    text.append("  " + "  ".join(f"{kind} {count}" for kind, count in kinds[:8]), style="dim")
    lost = demo.world.faults.get("loss", 0)
    text.append(f"   {lost} copies lost", style="red")
    return text


# -- real processes -----------------------------------------------------------------------------


def live_frame(demo: LiveDemo) -> RenderableType:
    """One picture of the demo with real processes."""
    params = demo.params
    headline = Text(
        f"{params.sites} processes, {params.senders} of them sending {params.messages:,} messages, "
        f"{params.loss:.0%} lost on the way"
    )
    stats = demo.net.stats()
    lost = f"   {stats['dropped'].get('loss', 0):,} copies lost"
    return Group(
        _head(f"{demo.seconds():5.1f}", headline),
        _processes(demo),
        _events(Text("\n".join(demo.story[-EVENTS:])), PROCESSES_WIDTH),
        Text.assemble(" ", (f"{stats['received']:,} datagrams", "bold"), (lost, "red")),
    )


def _processes(demo: LiveDemo) -> RenderableType:
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=False)
    for name, room in (("", 6), ("process", 9), ("sends", 7), ("token", 7), ("state", 12)):
        grid.add_column(name, width=room, no_wrap=True)
    grid.add_column("delivered", width=9, justify="right", no_wrap=True)
    grid.add_column("", width=BAR, no_wrap=True)
    for site, up in demo.view():
        word = site.word
        pid = site.process.pid if site.process is not None else 0
        done = word.position if word is not None else 0
        filled = min(BAR, done * BAR // max(1, demo.params.messages))
        grid.add_row(
            f"site {site.name}",
            Text(f"● {pid}", style="green") if up else Text("✗ killed", style="bold red"),
            f"{word.sent:,}" if word is not None and site.orders.messages else "",
            Text("★", style="bold yellow") if up and word is not None and word.holding else "",
            word.state[:12] if up and word is not None else "",
            f"{done:,}" if word is not None else "",
            Text("█" * filled, style="cyan" if up else "dim"),
        )
    return grid
