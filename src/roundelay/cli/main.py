"""`roundelay`: the group of commands, and how every failure becomes one line.

Exit status: 0 done; 1 done, and a promise was found broken, or the group could not say; 2 wrong
input, one line on stderr that names the field and what is allowed; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Final

import click

from roundelay import __version__
from roundelay.core.errors import ConfigError, RoundelayError, UsageError
from roundelay.node.event_log import log_as_json

COMMANDS: Final = {
    "demo": "Watch five processes agree while packets are lost and one is killed.",
    "simulate": "Run one group in virtual time and measure it.",
    "swarm": "Run many random groups under faults and check every promise.",
    "explore": "Visit every state a small group can reach.",
    "mutants": "Switch every rule off in turn: is the right promise reported broken?",
    "complexity": "Count what a broadcast costs in a cluster, as the papers do.",
    "plan": "Predict what a group would cost.",
    "diagram": "Draw a stretch of a trace.",
    "check": "Judge a trace: were the promises kept?",
    "node": "Run a node that serves applications in any language.",
    "send": "Send a message to a group.",
    "listen": "Print the messages of a group as they are delivered.",
    "members": "Show who is in a group.",
    "groups": "List the groups a node knows.",
    "status": "Show what a node does.",
    "group": "Recover a group that does not come back.",
    "why": "Say why a node is dead or alive to another.",
    "journal": "Read, check and repair what a recorder wrote.",
    "sweep": "Simulate a whole grid of parameters on Spark.",
    "figures": "Draw the papers' figures from a sweep.",
    "verify": "Prove order and delivery from the traces of all sites, on Spark.",
    "reconcile": "Make one complete archive of several recorders' journals.",
    "archive": "Turn journals into Parquet tables by group and day.",
    "query": "Find messages in archives and journals.",
    "advise": "Say which protocol and parameters suit a recorded workload.",
    "switch": "Stand between real nodes as a network with faults.",
    "chaos": "Run real processes through loss, kills, a pause and a partition, and check them.",
}
"""In the order in which one meets them."""

HOMES: Final = {
    "archive": ("reconcile", "archive", "query"),
    "questions": ("members", "groups", "status", "group", "why"),
    "research": ("sweep", "figures", "advise"),
    "serve": ("node", "switch"),
    "simulate": ("simulate", "complexity", "plan"),
    "swarm": ("swarm", "explore", "mutants"),
    "talk": ("send", "listen"),
    "traces": ("diagram", "check", "verify"),
}
"""Modules of several commands; any other command has the module of its name to itself."""

EXAMPLES: Final = """\b
Examples:
  roundelay demo
  roundelay node --name ann
  roundelay listen token:orders --json
  roundelay send token:orders "first"
  roundelay simulate token --sites 5 --loss 0.05 --messages 1000 --seed 1 --out runs/first
  roundelay simulate positive-ack --sites 10 --loss 0.1 --json
  roundelay simulate spo --sites 8 --destinations 3 --messages 20
  roundelay diagram runs/first --from-ms 0 --to-ms 200
  roundelay swarm --seeds 0:200
  roundelay swarm --seeds 17:18 --verbose --out runs/seed-17
  roundelay explore --sites 3 --resilience 1 --timestamps 3 --crashes 1
  roundelay complexity --sites 3:13
  roundelay plan --sites 10 --resilience 2 --loss 0.01 --rate 100 --hold-ms 50

Every command has its own --help.  With --json a command prints one JSON object and nothing else.
"""

WRONG_INPUT: Final = 2
INTERRUPTED: Final = 130


class Commands(click.Group):
    """Knows its commands by name and imports one when it is wanted: `--help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home = next((home for home, names in HOMES.items() if cmd_name in names), cmd_name)
        module = import_module(f"roundelay.cli.{home}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise ConfigError("command", name, "one of " + ", ".join(COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="roundelay", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Reliable ordered broadcast without a broker: every member hears every message, in the same
    order.

    Groups of live processes (node, send, listen), and the same protocols in a simulator: run them,
    break them, measure them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; what went wrong is one line on stderr."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        status = cli.main(args=words, prog_name="roundelay", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return _fail(words, "interrupted", INTERRUPTED)
    except click.MissingParameter as error:
        return _fail(words, _missing(error.param), WRONG_INPUT)
    except click.ClickException as error:
        return _fail(words, error.format_message(), WRONG_INPUT)
    except UsageError as error:
        return _fail(words, str(error), WRONG_INPUT)
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has seen enough (`roundelay … | head`); click's own answer to
        # that is to exit with 1, which here means something else.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the interpreter's last flush
        return 0
    except RoundelayError as error:
        return _fail(words, f"{type(error).__name__}: {error}", 1)
    except OSError as error:
        what = error.strerror or str(error)
        return _fail(words, f"{what}: {error.filename}" if error.filename else what, WRONG_INPUT)
    return status if isinstance(status, int) else 0


def _missing(param: click.Parameter | None) -> str:
    if param is None:
        return "a parameter is missing"
    allowed = getattr(param.type, "allowed", param.make_metavar(click.Context(cli)))
    return f"{param.name} is missing: {allowed}"


def _fail(words: Sequence[str], message: str, status: int) -> int:
    name = next((word for word in words if word in COMMANDS), "")
    prefix = f"roundelay {name}" if name else "roundelay"
    from roundelay.cli.output import printable  # it takes longer than a short command

    line = printable(" ".join(message.split()))  # names in it may be those of others
    click.echo(f"{prefix}: {line}", err=True)
    return status


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that knows no τ gets an escape instead of a traceback.
            stream.reconfigure(errors="backslashreplace")
    log_as_json()
    sys.exit(run())
