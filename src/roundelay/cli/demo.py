"""`roundelay demo`: the run to watch, in virtual time or with real processes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from msgspec import structs
from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roundelay.cli.options import PATH, Whole, flag, json_option, option
from roundelay.cli.output import coloured, print_table, print_violations, report
from roundelay.core.engine import MS, SECOND
from roundelay.runs.demo import Demo, DemoParams, letter
from roundelay.runs.folder import DIAGRAM, REPORT, RunFolder, run_folder
from roundelay.runs.live_demo import LiveDemo, live_params
from roundelay.runs.report import JUDGED
from roundelay.trace.checkers.verdict import INVARIANTS

PACE: Final = 2.0
"""Real seconds per virtual second: slow enough to follow."""

FRAME_NS: Final = 40 * MS


@click.command()
@option("--seed", Whole(0), "Decides the whole run.", 1)
@option("--out", PATH, "Folder of the run; replaced if it exists.", Path("runs/demo"))
@flag("--quick", "Do not wait for people: no live view.")
@flag("--simulated", "In virtual time instead of real processes.")
@option("--messages", Whole(100), "Of all senders together (real processes).", 100_000)
@flag(
    "--spark/--no-spark on_spark",
    "End with proofs and figures on Spark (real processes).",
    default=True,
)
@json_option
def demo_command(
    seed: int, out: Path, quick: bool, simulated: bool, messages: int, on_spark: bool, as_json: bool
) -> int:
    """Watch five processes agree on one order.

    Three of them send, one packet in twenty is lost, and the process that holds the token is
    killed and comes back.  Two record what is said.  Then Spark proves from the traces that the
    promises were kept, makes one archive of the two journals, and draws the papers' figures.
    Exit status 1 if the verdict is not unanimous."""
    if not simulated:
        return _live(seed, out, quick, messages, on_spark, as_json)
    params = DemoParams(seed=seed)
    with run_folder(out, force=True) as folder:
        folder.write_params("demo", structs.asdict(params))
        demo = Demo(params, folder.trace)
        with demo.recorder:  # one that is interrupted leaves no trace file
            if as_json:
                _run(demo)
            elif quick or not sys.stdout.isatty():
                _run_telling(demo)
            else:
                _run_live(demo)
            results = demo.finish()
        demo.write(folder, results)
    return report(results, as_json, lambda _: _show(demo, results, folder), not results["verdict"])


def _live(seed: int, out: Path, quick: bool, messages: int, on_spark: bool, as_json: bool) -> int:
    """The demo with real processes."""
    watch = not (as_json or quick) and sys.stdout.isatty()
    quiet = as_json or watch
    with run_folder(out, force=True) as folder:
        tell = (lambda line: None) if quiet else click.echo
        demo = LiveDemo(live_params(seed, messages), folder, tell)
        results = asyncio.run(_watched(demo, watch, quiet))
        demo.write(results)
    if not as_json:
        _show_live(demo, results)
    good = results["verdict"] == "kept"
    if good and on_spark:
        good = _prove(demo, results, as_json)
    where = f"  {folder.path}/: open {REPORT}, or {DIAGRAM} for the kill itself"
    return report(results, as_json, lambda _: click.echo(where), not good)


def _prove(demo: LiveDemo, results: dict[str, Any], quiet: bool) -> bool:
    """The part on Spark; without Spark a line that says how to have it."""
    try:
        import matplotlib  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        if not quiet:
            click.echo("  (proofs and figures on Spark: pip install 'roundelay[spark,plots]')")
        return True
    from roundelay.pipeline.demo import on_spark, sections
    from roundelay.pipeline.session import SparkOptions

    def tell(text: str) -> None:
        if not quiet:
            click.echo(f"  {text}")

    tell("Now on Spark, from what they left behind:")
    proofs = on_spark(demo.home.path, demo.journals(), SparkOptions(), tell)
    results["spark"] = proofs
    demo.write(results, sections(demo.home.path, proofs))
    tell(f"{', '.join(f'{what} {seconds} s' for what, seconds in proofs['seconds'].items())}\n")
    return bool(proofs["good"])


async def _watched(demo: LiveDemo, watch: bool, quiet: bool) -> dict[str, Any]:
    if not watch:
        return await demo.watched(lambda: None if quiet else _tell_places(demo), 2.0)
    with _picture(lambda width: live_frame(demo)) as draw:
        return await demo.watched(draw)


@contextmanager
def _picture(frame: Callable[[int], RenderableType]) -> Iterator[Callable[[], None]]:
    """A picture on the terminal, of a frame for its width, and what draws it anew."""
    screen = Console(highlight=False)
    with Live(frame(screen.width), console=screen, refresh_per_second=12, transient=True) as live:
        yield lambda: live.update(frame(screen.width))


def _tell_places(demo: LiveDemo) -> None:
    """Without a terminal: how far everybody is, every now and then."""
    words = [site.word for site in demo.sites if site.up]
    if any(words):
        places = " ".join(str(word.position) if word else "–" for word in words)
        click.echo(f"{demo.seconds():6.1f} s  delivered per site: {places}")


def _show_live(demo: LiveDemo, results: dict[str, Any]) -> None:
    broken = " ".join(results["violations"])
    _print_promises({(name, INVARIANTS[name]): name not in broken for name in JUDGED})
    traffic = results["datagrams"]
    click.echo(
        f"  {results['committed']:,} messages committed, {results['lives']} processes started; "
        f"{traffic['received']:,} datagrams, {traffic['dropped'].get('loss', 0):,} copies lost; "
        f"{results['seconds']} s"
    )
    for violation in results["violations"]:
        click.echo(f"  {coloured(violation, False)}")
    good = results["verdict"] == "kept"
    click.echo(f"\n  {coloured(demo.sentence(results), good, bold=True)}\n")


def _print_promises(promises: dict[tuple[str, str], bool]) -> None:
    """Whether each promise, with what it says, was kept."""
    rows = (
        (*promise, coloured("kept" if kept else "BROKEN", kept))
        for promise, kept in promises.items()
    )
    print_table("Promises", ("", "<", ""), rows)


def _run(demo: Demo) -> None:
    while not demo.over:
        demo.advance(100 * MS)


def _run_telling(demo: Demo) -> None:
    """Without a terminal: what happens, line by line, as fast as it goes."""
    printed = 0
    second = 0
    while not demo.over:
        demo.advance(20 * MS)
        events = list(demo.events)
        for at, text in events[printed:]:
            click.echo(f"{at / SECOND:7.3f} s  {text}")
        printed = len(events)
        if demo.world.now // SECOND > second:
            second = demo.world.now // SECOND
            places = " ".join(str(member.position) for member in demo.world.sites)
            click.echo(f"{demo.world.now / SECOND:7.3f} s  delivered per site: {places}")


def _run_live(demo: Demo) -> None:
    with _picture(lambda width: frame(demo, width)) as draw:
        due = time.monotonic()
        while not demo.over:
            demo.advance(FRAME_NS)
            draw()
            due += PACE * FRAME_NS / SECOND
            time.sleep(max(0.0, due - time.monotonic()))


def _show(demo: Demo, results: dict[str, Any], folder: RunFolder) -> None:
    promises = {(name, INVARIANTS[name]): kept for name, kept in results["invariants"].items()}
    promises["", "the same, judged once more from the trace file"] = not results["trace_violations"]
    _print_promises(promises)
    rows = []
    for site in results["by_site"]:
        what = "sender" if site["sender"] else ""
        if site["site"] == results["crashed_site"]:
            away = (results["returned_ms"] - results["crashed_ms"]) / 1000
            what = f"crashed with the token, back after {away:g} s"
        delivered, digest = str(site["delivered"]), site["log_digest"][:16]
        rows.append((f"site {site['site']}", delivered, digest, what))
    print_table("Sites", ("", "delivered", "digest of its log", "<"), rows)
    gap = (results["new_list_ms"] - results["crashed_ms"]) / 1000
    click.echo(
        f"  {results['pdus']:,} PDUs, {results['lost_copies']} copies lost; without a token for "
        f"{gap:.2f} s after the crash; {results['virtual_s']:.1f} s of virtual time"
    )
    print_violations(results["violations"])
    click.echo(f"\n  {coloured(demo.sentence(results), results['verdict'], bold=True)}\n")
    click.echo(f"  {folder.path}/: open {REPORT}, or {DIAGRAM} for the crash itself")


ROLES: Final = {
    "token": ("★ token", "bold yellow"),
    "passing on": ("☆ passing", "yellow"),
    "reforming": ("… reforming", "bold blue"),
}
COLOURS: Final = ("cyan", "white", "magenta", "yellow", "white")
"""Of the messages, by sender."""

EVENTS: Final = 6
WIDTH: Final = 116
NARROW: Final = 96
"""Below this the lists of members are left out."""
PROCESSES_WIDTH: Final = 104
BAR: Final = 40

_panel = partial(Panel, title_align="left", border_style="dim")
HAPPENS: Final[dict[str, Any]] = {"title": "what happens", "height": EVENTS + 2}


def frame(demo: Demo, width: int = WIDTH) -> RenderableType:
    """One picture of the demo, for a terminal of this width."""
    width = min(width - 1, WIDTH)
    headline = Text(demo.headline, style="bold yellow" if demo.victim >= 0 else "bold")
    return Group(
        _head(f"{demo.world.now / SECOND:6.2f}", headline),
        _sites(demo, width),
        _order(demo, width),
        _panel(_story(demo), **HAPPENS, width=width),
        _counters(demo),
    )


def _head(seconds: str, headline: Text) -> RenderableType:
    text = Text.assemble((" Roundelay ", "bold reverse"), (f"  {seconds} s  ", "bold"), headline)
    return Group(Text(), text, Text())


def _grid(*columns: tuple[str, int]) -> Table:
    """A table of columns of that name and width."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=False)
    for name, room in columns:
        justify: JustifyMethod = "right" if name == "delivered" else "left"
        grid.add_column(name, width=room, justify=justify, no_wrap=True)
    return grid


def _sites(demo: Demo, width: int) -> RenderableType:
    wide = width >= NARROW
    lists = [("list: members", 16)] if wide else []
    last = [("delivered", 9), ("latest messages", 40 if wide else 22)]
    grid = _grid(("", 8), ("", 6), ("sends", 5), ("token", 11), *lists, *last)
    for view in demo.views():
        sends = f"{letter(view.site)}1 …" if view.site in demo.params.senders else ""
        cells: list[str | Text] = [
            f"site {view.site}",
            Text("● up", style="green") if view.up else Text("✗ down", style="bold red"),
            Text(sends, style=COLOURS[view.site % len(COLOURS)]),
            Text(*ROLES.get(view.role, ())),
        ]
        if wide:
            members = f"{view.list_name}: {' '.join(map(str, view.members))}"
            cells.append(Text(members if view.list_name else "", style="dim"))
        cells += [str(view.delivered), _names(view.recent[-(8 if wide else 4) :])]
        grid.add_row(*cells)
    return grid


def _names(names: list[str]) -> Text:
    text = Text()
    for name in names:
        text.append(f"{name} ", style=COLOURS[(ord(name[0]) - ord("a")) % len(COLOURS)])
    return text


def _order(demo: Demo, width: int) -> RenderableType:
    order = demo.order
    shown = 3 * (width - 24) // 5  # three lines of names, whatever their lengths
    skipped = max(0, len(order) - shown)
    text = Text(f"… {skipped} before …  " if skipped else "", style="dim")
    text = Text.assemble(text, _names(order[skipped:]))
    title = f"the agreed order: {len(order)} messages"
    return _panel(text, title=title, width=width, height=5)


def _story(demo: Demo) -> Text:
    text = Text()
    for at, what in list(demo.events)[-EVENTS:]:
        text.append(f"{at / SECOND:7.3f} s  ", style="dim")
        text.append(f"{what}\n")
    return text


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
        _panel(Text("\n".join(demo.story[-EVENTS:])), **HAPPENS, width=PROCESSES_WIDTH),
        Text.assemble(" ", (f"{stats['received']:,} datagrams", "bold"), (lost, "red")),
    )


def _processes(demo: LiveDemo) -> RenderableType:
    process = (("process", 9), ("sends", 7), ("token", 7), ("state", 12))
    grid = _grid(("", 6), *process, ("delivered", 9), ("", BAR))
    for site in demo.sites:
        word, up = site.word, site.up
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
