"""The walk of one live message: `python -m tools.walk` prints, as a table, every function of ours
that the message passes through, from `broadcast` to the other member's `async for`.

Two members on one medium, sealed, L = 0; the other member has the token.  A call counts if it is
given the message (as bytes, in a bundle, a PDU or a batch, sealed or not) or returns it; calls that
only answer a question about it, with a number or a truth value, do not, nor does what the sender
does with its own copy.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import roundelay
from roundelay.core.engine import Effects

MESSAGE = b"the message that is followed"
ATTEMPTS = 12
SOURCE = f"{os.sep}roundelay{os.sep}"


class Walk:
    """Notes calls by `sys.setprofile`."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self.is_over = is_over
        self.forms = [MESSAGE]
        """The message as it is, and as it looks sealed."""
        self.calls: dict[int, tuple[str, str]] = {}
        self._open: dict[FrameType, int] = {}
        self._number = 0

    def carries(self, value: Any, depth: int = 5) -> bool:
        """Whether the message is in `value`."""
        if isinstance(value, bytes | memoryview):
            return any(form in bytes(value) for form in self.forms)
        if depth and isinstance(value, list | tuple):
            return any(self.carries(item, depth - 1) for item in value)
        if depth and isinstance(value, msgspec.Struct):
            names: Iterable[str] = value.__struct_fields__
            return any(self.carries(getattr(value, name), depth - 1) for name in names)
        if depth and isinstance(value, Effects):
            return self.carries(
                [getattr(value, "sends", 0), getattr(value, "deliveries", 0)], depth
            )
        return False

    def note(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or SOURCE not in code.co_filename or self.is_over():
            return
        if event == "call":
            self._number += 1
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if self.carries([frame.f_locals.get(name) for name in names]):
                self._open.setdefault(frame, self._number)
                self.calls.setdefault(self._open[frame], _where(frame))
            else:
                self._open.setdefault(frame, -self._number)
            return
        number = self._open.get(frame, 0)
        if code.co_name == "seal" and isinstance(result, bytes) and number > 0:
            self.forms.append(result)
        if isinstance(result, bool | int):
            self.calls.pop(number, None)
        elif number < 0 and self.carries(result):
            self.calls.setdefault(-number, _where(frame))


def _where(frame: FrameType) -> tuple[str, str]:
    code = frame.f_code
    return code.co_filename.rpartition(SOURCE)[2], code.co_qualname


async def walk() -> list[tuple[str, str]]:
    """The calls, in the order in which they begin, of the shortest of a few walks: its sender did
    not have the token, and so did not take its own copy first."""
    walks = []
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_text(os.urandom(32).hex())
        key.chmod(0o600)
        options: dict[str, Any] = {"key": key, "multicast": _multicast(), "resilience": 0}
        async with (
            roundelay.join("walk", name="a", **options) as here,
            roundelay.join("walk", name="b", **options) as there,
        ):
            await here.ready()
            await there.ready()
            for _ in range(ATTEMPTS):
                await there.broadcast(b"so that the token is there")
                await anext(aiter(there))
                reading = asyncio.ensure_future(anext(aiter(there)))
                seen = Walk(reading.done)
                await asyncio.sleep(0.1)
                sys.setprofile(seen.note)
                try:
                    sending = asyncio.ensure_future(here.broadcast(MESSAGE))
                    await asyncio.wait_for(reading, 10)
                finally:
                    sys.setprofile(None)
                await sending
                walks.append([seen.calls[number] for number in sorted(seen.calls)])
    return min(walks, key=len)


def _multicast() -> str:
    """A group that nobody else is on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return f"239.255.66.{1 + os.getpid() % 254}:{one.getsockname()[1]}"


def main() -> None:
    calls = asyncio.run(walk())
    print("| | where | function |")
    print("|---|---|---|")
    for number, (file, name) in enumerate(calls, 1):
        print(f"| {number} | `{file}` | `{name}` |")


if __name__ == "__main__":
    main()
