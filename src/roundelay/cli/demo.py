"""`roundelay demo`: the run to watch."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from roundelay.cli.options import PATH, Whole, flag, json_option, option
from roundelay.cli.output import console, literally, report, table
from roundelay.core.engine import MS, SECOND
from roundelay.runs.demo import Demo, DemoParams
from roundelay.runs.folder import DIAGRAM, REPORT, RunFolder, run_folder
from roundelay.runs.live_demo import LiveDemo, live_params
from roundelay.runs.report import JUDGED
from roundelay.trace.checkers.verdict import INVARIANTS

PACE = 2.0
"""Real seconds per virtual second: slow enough to follow."""

FRAME_NS = 40 * MS


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
def command(
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
        try:
            if as_json:
                _run(demo)
            elif quick or not sys.stdout.isatty():
                _run_telling(demo)
            else:
                _run_live(demo)
        except BaseException:
            demo.abandon()
            raise
        results = demo.finish()
        demo.write(folder, results)
    report(results, as_json, lambda _: _show(demo, results, folder))
    return 0 if results["verdict"] else 1


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
    report(results, as_json, lambda _: click.echo(where))
    return 0 if good else 1


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
    from rich.live import Live

    from roundelay.cli.live import live_frame

    screen = console()
    with Live(live_frame(demo), console=screen, refresh_per_second=12, transient=True) as live:
        return await demo.watched(lambda: live.update(live_frame(demo)))


def _tell_places(demo: LiveDemo) -> None:
    """Without a terminal: how far everybody is, every now and then."""
    words = [site.word for site, up in demo.view() if up]
    if any(words):
        places = " ".join(str(word.position) if word else "–" for word in words)
        click.echo(f"{demo.seconds():6.1f} s  delivered per site: {places}")


def _show_live(demo: LiveDemo, results: dict[str, Any]) -> None:
    screen = console()
    promises = table("Promises", "", "", "")
    promises.columns[1].justify = "left"
    broken = " ".join(results["violations"])
    for name in JUDGED:
        mark = "[red]BROKEN[/red]" if f"{name}" in broken else "[green]kept[/green]"
        promises.add_row(name, INVARIANTS[name], mark)
    screen.print(promises)
    traffic = results["datagrams"]
    screen.print(
        f"  {results['committed']:,} messages committed, {results['lives']} processes started; "
        f"{traffic['received']:,} datagrams, {traffic['dropped'].get('loss', 0):,} copies lost; "
        f"{results['seconds']} s"
    )
    for violation in results["violations"]:
        screen.print(f"  [red]{literally(violation)}[/red]")
    good = results["verdict"] == "kept"
    colour = "green" if good else "red"
    screen.print(f"\n  [bold {colour}]{literally(demo.sentence(results))}[/bold {colour}]\n")


def _run(demo: Demo) -> None:
    while not demo.over:
        demo.advance(100 * MS)


def _run_telling(demo: Demo) -> None:
    """Without a terminal: what happens, line by line, as fast as it goes."""
    printed = 0
    second = 0
    while not demo.over:
        demo.advance(20 * MS)
        events = list(demo.story.events)
        for at, text in events[printed:]:
            click.echo(f"{at / SECOND:7.3f} s  {text}")
        printed = len(events)
        if demo.world.now // SECOND > second:
            second = demo.world.now // SECOND
            places = " ".join(str(member.position) for member in demo.world.sites)
            click.echo(f"{demo.world.now / SECOND:7.3f} s  delivered per site: {places}")


def _run_live(demo: Demo) -> None:
    from rich.live import Live

    from roundelay.cli.live import frame

    screen = console()
    with Live(
        frame(demo, screen.width), console=screen, refresh_per_second=12, transient=True
    ) as live:
        due = time.monotonic()
        while not demo.over:
            demo.advance(FRAME_NS)
            live.update(frame(demo, screen.width))
            due += PACE * FRAME_NS / SECOND
            time.sleep(max(0.0, due - time.monotonic()))


def _show(demo: Demo, results: dict[str, Any], folder: RunFolder) -> None:
    screen = console()
    promises = table("Promises", "", "", "")
    promises.columns[1].justify = "left"
    for name, kept in results["invariants"].items():
        mark = "[green]kept[/green]" if kept else "[red]BROKEN[/red]"
        promises.add_row(name, INVARIANTS[name], mark)
    again = results["trace_violations"]
    mark = "[red]BROKEN[/red]" if again else "[green]kept[/green]"
    promises.add_row("", "the same, judged once more from the trace file", mark)
    screen.print(promises)
    sites = table("Sites", "", "delivered", "digest of its log", "")
    sites.columns[3].justify = "left"
    for site in results["by_site"]:
        what = "sender" if site["sender"] else ""
        if site["site"] == results["crashed_site"]:
            away = (results["returned_ms"] - results["crashed_ms"]) / 1000
            what = f"crashed with the token, back after {away:g} s"
        sites.add_row(f"site {site['site']}", str(site["delivered"]), site["log_digest"][:16], what)
    screen.print(sites)
    gap = (results["new_list_ms"] - results["crashed_ms"]) / 1000
    screen.print(
        f"  {results['pdus']:,} PDUs, {results['lost_copies']} copies lost; without a token for "
        f"{gap:.2f} s after the crash; {results['virtual_s']:.1f} s of virtual time"
    )
    for violation in results["violations"]:
        screen.print(f"  [red]{violation['invariant']}[/red] {literally(violation['detail'])}")
    colour = "green" if results["verdict"] else "red"
    screen.print(f"\n  [bold {colour}]{demo.sentence(results)}[/bold {colour}]\n")
    screen.print(f"  {folder.path}/: open {REPORT}, or {DIAGRAM} for the crash itself")
