"""What the demo with real processes looks like while it runs."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roundelay.runs.live_demo import LiveDemo

BAR: Final = 40
EVENTS: Final = 6
WIDTH: Final = 104


def frame(demo: LiveDemo) -> RenderableType:
    """One picture of the demo."""
    return Group(_head(demo), _sites(demo), _events(demo), _counters(demo))


def _head(demo: LiveDemo) -> RenderableType:
    params = demo.params
    text = Text()
    text.append(" Roundelay ", style="bold reverse")
    text.append(f"  {demo.seconds():5.1f} s  ", style="bold")
    text.append(
        f"{params.sites} processes, {params.senders} of them sending {params.messages:,} messages, "
        f"{params.loss:.0%} lost on the way"
    )
    return Group(Text(), text, Text())


def _sites(demo: LiveDemo) -> RenderableType:
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


def _events(demo: LiveDemo) -> RenderableType:
    text = Text("\n".join(demo.story[-EVENTS:]))
    return Panel(text, title="what happens", title_align="left", width=WIDTH, height=EVENTS + 2,
                 border_style="dim")  # fmt: skip


def _counters(demo: LiveDemo) -> RenderableType:
    stats = demo.net.stats()
    text = Text(" ")
    text.append(f"{stats['received']:,} datagrams", style="bold")
    text.append(f"   {stats['dropped'].get('loss', 0):,} copies lost", style="red")
    return text
