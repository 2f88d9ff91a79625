"""Sending with receipts, without asyncio: for programs that send much and then wait.

::

    with Publisher("127.0.0.1:6678", "token:orders", name="loader") as publisher:
        for seq in publisher.send([bundle, …]):    # position of each bundle's last message
            ...

Bundles go out as long as `window` of them wait for their receipts; a node that has no room stops
reading, and then sending waits.  What went wrong is raised, and nothing is sent again by itself:
after `Indeterminate` or `ConnectionLost` nobody knows what became of the bundles that have no
receipt yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final

from roundelay.client.connection import TIMEOUT_S, NodeConnection
from roundelay.client.protocol import RequestFailed, Settled
from roundelay.core.bundle import Bundle
from roundelay.core.errors import Indeterminate, Refused
from roundelay.core.position import Since
from roundelay.node.node_api import Batch, Refusal, Send
from roundelay.wire.frontend import DEFAULT

WINDOW: Final = 64


class Publisher(NodeConnection):
    """One connection to a node, for one group."""

    def __init__(
        self, where: str = DEFAULT, group: str = "", *, name: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(where, group, name=name, timeout_s=timeout_s)
        self._tags = count()

    def names(self) -> list[str]:
        """Names of all applications at this node, this one among them."""
        frontends = self.ask("status").get("frontends") or ()
        return [
            client.get("name", "")
            for frontend in frontends
            for client in frontend.get("clients", ())
        ]

    # -- sending ---------------------------------------------------------------------------

    def send(
        self, bundles: Iterable[Bundle], window: int = WINDOW, *, recorders: int = 0
    ) -> Iterator[int]:
        """Send all of them, in order; gives the position of the last message of each, as soon as so
        many `recorders` have synced it.

        Raises Refused when one is certainly not delivered, Indeterminate when nobody can say.
        """
        settled: dict[int, int] = {}
        waiting: deque[int] = deque()
        for bundle in bundles:
            waiting.append(next(self._tags))
            self._protocol.send(Send(self.group, bundle, waiting[-1], recorders=recorders))
            self._flush()
            while len(waiting) >= window:
                yield self._settled(settled, waiting.popleft())
        while waiting:
            yield self._settled(settled, waiting.popleft())

    def _settled(self, settled: dict[int, int], tag: int) -> int:
        while tag not in settled:
            event = self._await(Settled, RequestFailed)
            fate = event.refusal if isinstance(event, RequestFailed) else event.fate
            if isinstance(fate, Refusal):
                kind = Indeterminate if fate.indeterminate else Refused
                raise kind(f"group {self.group}: {fate.reason}")
            settled[fate.tag] = fate.seq
        return settled.pop(tag)

    # -- what was said before --------------------------------------------------------------

    def history(self, since: int, until: int) -> Iterator[tuple[int, str, Bundle]]:
        """(position, sender, messages) from `since` up to `until`, as far as the node itself still
        has them; Refused if it no longer has the beginning."""
        self._protocol.join(self.group, Since(since))
        at = since
        while at < until:
            event = self._await(Batch, RequestFailed)
            if isinstance(event, RequestFailed):
                raise Refused(f"group {self.group}: {event.refusal.reason}")
            seq, bundle = event.seq, event.bundle
            if seq > at:
                raise Refused(
                    f"group {self.group}: the node no longer has positions {at} to {seq - 1}"
                )
            end = seq + len(bundle)
            if end > at:
                yield at, event.sender, bundle.part(at - seq, min(end, until) - seq)
                at = end
        self._protocol.leave(self.group)
        self._flush()
