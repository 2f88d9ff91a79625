"""`roundelay send` and `listen`: talk to a group through a node that runs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import click

import roundelay
from roundelay.cli.options import Number, Whole, flag, json_lines_option, json_option, option
from roundelay.cli.output import json_line, payload, print_json, printable, say_zone, text_line, utc
from roundelay.client.contiguity import RAISE, SKIP
from roundelay.client.daemon import PATIENCE_S, Daemon
from roundelay.client.group import Group, Joining
from roundelay.client.messages import Message, Receipt, bundle_of, messages_of
from roundelay.client.options import TIMEOUT_MAX_S
from roundelay.client.sending import is_open
from roundelay.client.since import parse_moment
from roundelay.core.bundle import Bundle
from roundelay.core.errors import (
    ConfigError,
    GroupFailed,
    Indeterminate,
    PayloadTooLarge,
    Refused,
    RoundelayError,
    UsageError,
)
from roundelay.node.groups import family_of
from roundelay.node.node_api import WHOLE, View
from roundelay.wire.frontend import DEFAULT

T = TypeVar("T")

READ_BYTES: Final = 64 << 10
TOGETHER_MESSAGES: Final = 1024
"""Lines read together are sent together, up to so many."""
AHEAD: Final = 256
"""Sends that may wait for their receipts."""
WAIT_S: Final = 1.5
"""Members that are there find each other in less."""


node_option = option(
    "--node ADDR", str, "Frontend address of the node: HOST:PORT or unix:PATH.", DEFAULT
)
timeout_option = option(
    "--timeout SECONDS",
    Number("seconds, above 0 and up to a year", lambda s: 0 < s <= TIMEOUT_MAX_S),
    "How long to try to connect again when the connection to the node is lost.",
    PATIENCE_S,
    to="timeout_s",
)


def _say_break(timeout_s: float, reason: str) -> None:
    """A connection was lost and is made again."""
    line = f"{reason.partition(': ')[0]}; trying again for up to {timeout_s:g} s"
    click.echo(printable(line), err=True)


def run_client(main: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(main)
    except Refused as error:  # what the node refuses is wrong input like any other
        raise UsageError(str(error)) from None


@asynccontextmanager
async def told_if_waiting(group: str, state: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
    """One line on standard error if the group does not confirm anything for a while, and why:
    `state` tells, in words."""

    async def tell() -> None:
        await asyncio.sleep(WAIT_S)
        with suppress(RoundelayError):
            present = await state()
            if present and not is_open(View(group, "", (), present)):
                click.echo(printable(waiting_line(group, present)), err=True)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


def waiting_line(group: str, state: str) -> str:
    """
    >>> waiting_line("token:g", "open: waiting for a second member").partition(";")[0]
    'token:g: open: waiting for a second member'
    """
    line = f"{group}: {state}"
    if state.startswith("open: waiting"):
        line += "; nothing is confirmed before (min_members, 2 unless the group says otherwise)"
    return line


# ------------------------------------------------------------------------ send

SEND_EPILOG = """\b
Examples:
  roundelay send token:orders "two apples"
  date | roundelay send news -
  cat orders.txt | roundelay send token:orders - --lines
  roundelay send work "whoever is free" --someone
  roundelay send spo:staff "only you two" --to ann,bob
  cat transfer.txt | roundelay send grsb:bank - --unit
"""


@click.command(epilog=SEND_EPILOG)
@click.argument("group")
@click.argument("text", required=False, metavar="[TEXT|-]")
@node_option
@flag("--lines", "Each line is a message.")
@flag("--someone", "To exactly one application of one node.")
@option("--to NAMES", str, "To these nodes: names with commas between them.")
@option("--conference", Whole(0, 0xFFFFFFFF), "Recorders and replays select by it.", unset=0)
@option("--kind", Whole(0, 0xFFFFFFFF), "The same.", unset=0)
@flag("--unit", "Each line is a message; all take effect together (grsb:, wide:).")
@option("--recorded K", Whole(0, 254), "Wait until K recorders have it on disk.", unset=0)
@timeout_option
@json_option
def send_command(
    group: str, text: str | None, someone: bool, to: str | None, as_json: bool, **given: Any
) -> None:
    """Send a message to GROUP and wait until it has its place.

    With --json, seq is that place: of the last message, or null without a total order.
    Members of a group without a prefix that were lost, or left, before they had it are named on
    standard error, and in given_up.

    If the connection to the node is lost, what comes later is sent over the next one.  What was
    under way is not sent again, since nobody knows whether it was delivered: it ends with status 1.

    Without TEXT, or with -, the message is what comes from standard input, byte for byte."""
    names = None if to is None else tuple(name.strip() for name in to.split(","))
    if names is not None and not all(names):
        raise ConfigError("to", repr(to), "names of nodes with commas between them")
    if names is not None and someone:
        raise ConfigError("to", to, "nothing with --someone")
    if not group:
        raise ConfigError("group", repr(group), "a name")
    data = None if text is None or text == "-" else text.encode(errors="surrogateescape")
    chosen = SimpleNamespace(**given)
    if someone and (chosen.conference or chosen.kind or chosen.recorded or chosen.unit):
        raise ConfigError("someone", "yes", "not with --conference, --kind, --unit or --recorded")
    results = run_client(_send(group, data, None if someone else names, someone, chosen))
    if as_json:
        print_json(results)


async def _send(
    group: str,
    data: bytes | None,
    to: tuple[str, ...] | None,
    someone: bool,
    given: SimpleNamespace,
) -> dict[str, Any]:
    how: dict[str, Any] = {"recorders": given.recorded, "to": to, "unit": given.unit}

    async def state() -> str:
        return str((await daemon.ask("members", group)).get("state", ""))

    name, patience_s = "roundelay send", given.timeout_s
    async with (
        await Daemon.connect(given.node, name=name, patience_s=patience_s) as daemon,
        told_if_waiting(group, state),
    ):
        daemon.on_break = partial(_say_break, given.timeout_s)
        limit = daemon.max_message
        under_way = _UnderWay(Group(group, daemon))  # which is not joined
        async for messages in _messages(data, given.lines or given.unit, limit, given.unit):
            if someone:  # each to someone, not all to the same one
                for message in messages:
                    under_way.send(Bundle.of(message), someone=True)
            else:
                bundle = bundle_of(messages, "messages", given.conference, given.kind)
                under_way.send(bundle, **how)
            await under_way.settle(AHEAD)
        await under_way.settle(0)
    results = {"group": group, "messages": under_way.settled, "seq": under_way.last}
    if under_way.given_up:
        names = ", ".join(map(printable, under_way.given_up))
        click.echo(f"given up, for they were lost or left before they had it: {names}", err=True)
        results["given_up"] = list(under_way.given_up)
    return results


class _UnderWay:
    """What was sent and waits for its receipt."""

    def __init__(self, group: Group) -> None:
        self.settled = 0
        """How many messages have their place,"""
        self.last: int | None = None
        """and the place of the last, if there is an order."""
        self.given_up: dict[str, None] = {}
        """Names of those who were lost, or left, before they had one of them."""
        self._group = group
        self._waiting: deque[tuple[int, asyncio.Task[Receipt]]] = deque()

    def send(self, bundle: Bundle, **how: Any) -> None:
        receipt = asyncio.create_task(self._group.submit(bundle, **how))
        receipt.add_done_callback(_seen)
        self._waiting.append((len(bundle), receipt))

    async def settle(self, most: int) -> None:
        """Wait until no more than `most` sends are without a receipt."""
        while len(self._waiting) > most:
            messages, receipt = self._waiting.popleft()
            try:
                answer = await receipt
            except (Indeterminate, Refused) as error:
                reason = str(error).removeprefix(f"group {self._group.name}: ")
                if self.settled and isinstance(error, Indeterminate):
                    reason += f"; {self.settled} messages before have their place"
                raise type(error)(reason) from None
            self.settled += messages
            if answer.seq is not None:
                self.last = max(self.last or 0, answer.seq)
            self.given_up |= dict.fromkeys(answer.given_up)


def _seen(receipt: asyncio.Task[Receipt]) -> None:
    """After the first failure nobody asks for others, which asyncio should not complain of."""
    if not receipt.cancelled():
        receipt.exception()


async def _messages(
    given: bytes | None, lines: bool, limit: int, together: bool
) -> AsyncIterator[list[bytes]]:
    """The messages to send, as they come, or all `together`."""
    if together:
        gathered: list[bytes] = []
        async for some in _messages(given, lines, limit, False):
            gathered += some
            if sum(map(len, gathered)) > limit:
                raise PayloadTooLarge(f"a unit of more than {limit} bytes: send several")
        if gathered:
            yield gathered
        return
    rest = bytearray()
    async for chunk in _chunks(given):
        rest += chunk
        if lines and b"\n" in chunk:
            *full_lines, rest = rest.split(b"\n")
            for i in range(0, len(full_lines), TOGETHER_MESSAGES):
                yield [bytes(line) for line in full_lines[i : i + TOGETHER_MESSAGES]]
        if len(rest) > limit:
            what = "a line" if lines else "the message"
            raise PayloadTooLarge(
                f"{what} is longer than {limit} bytes, which is all the node takes: split it, or "
                "start the node with a larger --max-message"
            )
    if rest or not lines:
        yield [bytes(rest)]


async def _chunks(given: bytes | None) -> AsyncIterator[bytes]:
    """What was given, or else standard input in pieces; a terminal or a pipe does not keep others
    waiting."""
    if given is not None:
        yield given
        return
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    chunk = b"?"
    while chunk:
        ready = asyncio.Event()
        try:
            # Anew for each piece: one that was noticed twice would be read twice, and the second
            # read blocks everything.
            loop.add_reader(descriptor, ready.set)
        except PermissionError:  # a file: it is always ready
            ready.set()
            await asyncio.sleep(0)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
        chunk = os.read(descriptor, READ_BYTES)
        yield chunk


# ------------------------------------------------------------------------ listen

LISTEN_EPILOG = """\b
Examples:
  roundelay listen token:orders
  roundelay listen token:orders --count 100 --json > orders.jsonl
  roundelay listen token:orders --since start --conference 7
  roundelay listen token:orders --since 2026-01-31T12:00Z
"""


@click.command(epilog=LISTEN_EPILOG)
@click.argument("group")
@node_option
@option("--count", Whole(1), "Stop after so many messages.")
@option(
    "--since WHEN",
    str,
    "Begin there, then go on live: a position (SEQ or HISTORY:SEQ), a date-time (UTC unless it "
    "has a zone), or start.",
)
@option(
    "--missing",
    click.Choice([RAISE, SKIP]),
    "Where nobody has the next messages: end, or go on behind them.",
    RAISE,
)
@option("--conference", Whole(0, 0xFFFFFFFF), "Print only this conference.")
@option("--sender", str, "Print only what this node sent.")
@timeout_option
@json_lines_option
def listen_command(group: str, as_json: bool, **given: Any) -> None:
    """Print the messages of GROUP as they are delivered.

    What was before comes from the memory of members or a recorder; if nobody has it any more, it
    ends with an error that says what is missing. Ctrl-C ends it.

    If the connection to the node is lost it connects again and goes on with the next message; in
    groups without a total order, where nobody could say which that is, it ends with an error."""
    chosen = SimpleNamespace(**given)
    moment = None if chosen.since is None else parse_moment(chosen.since)
    if chosen.since is not None:
        say_zone(chosen.since, "since")
    joining = roundelay.join(
        group,
        service=family_of(group).service,
        node=chosen.node,
        name="roundelay listen",
        timeout=chosen.timeout_s,
        since=moment,
        missing=chosen.missing,
    )
    try:
        run_client(_listen(joining, chosen, _json_line if as_json else _text_line))
    except GroupFailed as error:
        raise UsageError(f"failed: {error.reason}") from None
    except KeyboardInterrupt:
        if chosen.count is not None:  # it has not seen all it was to see
            raise


async def _listen(
    joining: Joining, given: SimpleNamespace, line: Callable[[str, Message], str]
) -> None:
    async with joining as group:
        group.on_break = partial(_say_break, given.timeout_s)

        async def state() -> str:
            return group.view.state

        try:
            view = await group.changed_view(group.view)
            if sys.stderr.isatty():
                who = ", ".join(map(printable, view.members)) or "nobody is there yet"
                click.echo(f"listening to {group.name} at {given.node}: {who}", err=True)
            async with told_if_waiting(group.name, state):
                await _print(group, given, line)
        except Refused as error:
            raise Refused(str(error).removeprefix(f"group {group.name}: ")) from None


async def _print(group: Group, given: SimpleNamespace, line: Callable[[str, Message], str]) -> None:
    """Print what comes, as it comes, up to as many messages as are asked for."""
    printed = skipped = 0
    async for batch in group.batches():
        if group.skipped > skipped:
            missing, skipped = group.skipped - skipped, group.skipped
            what = f"{missing} messages before position {batch.seq} are missing"
            click.echo(f"{what}: nobody has them any more", err=True)
        for message in messages_of(batch):
            if given.sender not in (None, message.sender):
                break
            if given.conference in (None, message.conference):
                sys.stdout.write(line(group.name, message))
                printed += 1
                if printed == given.count:
                    return
        sys.stdout.flush()


def _json_line(group: str, message: Message) -> str:
    content = payload(message.data)
    optional = {
        "conference": message.conference,
        "kind": message.kind,
        "base64": content.get("base64"),
        "unit": "" if message.unit == WHOLE else message.unit,
    }
    return json_line(
        {
            "group": group,
            "seq": message.seq,
            "sender": message.sender,
            "time": utc(message.time),
            "data": content["data"],
            **{name: value for name, value in optional.items() if value},
        }
    )


def _text_line(group: str, message: Message) -> str:
    place = "" if message.seq is None else f"{message.seq} "
    return text_line(f"{place}{message.sender}", message.data)
