"""Say it when a command waits because a group has too few members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import click

from roundelay.cli.output import printable
from roundelay.client.sending import is_open
from roundelay.core.errors import RoundelayError
from roundelay.node.node_api import View

WAIT_S: Final = 1.5
"""Members that are there find each other in less."""
State = Callable[[], Awaitable[str]]
"""What a group's state is now, in words."""


@asynccontextmanager
async def told_if_waiting(group: str, state: State) -> AsyncIterator[None]:
    """One line on standard error if the group does not confirm anything for a while, and why."""
    telling = asyncio.create_task(_tell(group, state))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(group: str, state: State) -> None:
    await asyncio.sleep(WAIT_S)
    with suppress(RoundelayError):
        present = await state()
        if present and not is_open(View(group, "", (), present)):
            click.echo(printable(waiting_line(group, present)), err=True)


def waiting_line(group: str, state: str) -> str:
    """
    >>> waiting_line("token:g", "open: waiting for a second member").partition(";")[0]
    'token:g: open: waiting for a second member'
    """
    line = f"{group}: {state}"
    if state.startswith("open: waiting"):
        line += "; nothing is confirmed before (min_members, 2 unless the group says otherwise)"
    return line
