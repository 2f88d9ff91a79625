"""One site of a chaos run: a process with a node and an application of its own.

It is started with one JSON object (`Orders`) as its argument, and says how it is doing in one JSON
object a line (`Word`) on its standard output.  The word `go` on its standard input starts its load;
`die` lets it kill itself the moment it holds the token, which nobody outside could hit; the end of
that input, or SIGTERM, ends the process: it does not outlive who started it.

The application sends its share of messages at a steady rate, all of them different, and looks for
false promises: a receipt must name the position at which its message was delivered.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.errors import QueueFull
from roundelay.core.events import DISK, NOTHING_LEFT
from roundelay.core.families import TOKEN
from roundelay.node.driver.tracing import Tracing
from roundelay.node.event_log import log_as_json
from roundelay.node.groups import GroupSpec
from roundelay.node.medium.probe import Choice
from roundelay.node.node import Node
from roundelay.node.node_api import Batch, Receipt, Refusal, Send, Subscriber, View
from roundelay.node.node_config import NodeConfig
from roundelay.node.recording.recorder import RecordConfig

TICK_S: Final = 0.01
SAY_S: Final = 0.1
AT_ONCE: Final = 500
"""Messages given to the node in one call."""

GROUP: Final = "token:chaos"


class Orders(Struct, frozen=True, kw_only=True):
    """What a site is told when it is started."""

    name: str
    members: tuple[str, ...]
    resilience: int
    via: tuple[str, int] | None
    """The switch to cross; else it is real multicast on `interface`."""
    interface: str
    secret: bytes | None
    folder: str
    """What survives: the node's own directory is in it."""
    traces: str
    level: str
    life: int
    """How often the site was started before."""
    messages: int
    """To be sent in this life."""
    rate: float
    """Per second."""
    size: int
    wiped: bool = False
    record: bool = False
    mutant: str = ""
    """Run with a rule switched off (`sim.mutants`)."""


class Word(Struct, kw_only=True):
    """What a site says of itself."""

    state: str = "starting"
    position: int = 0
    """The next position it will deliver."""
    sent: int = 0
    settled: int = 0
    """Own messages with a receipt."""
    doubtful: int = 0
    """Own messages whose fate the node could not tell."""
    waiting: bool = False
    """Whether the node still has own messages whose fate it does not know."""
    false: int = 0
    """Receipts that were not true."""
    holding: bool = False
    error: str = ""
    over: str = ""
    """A buffer that was seen beyond its limit (I6)."""


class SendingApplication(Subscriber):
    """The application."""

    def __init__(self, node: Node, orders: Orders) -> None:
        self.node = node
        self.orders = orders
        self.word = Word()
        self.open: dict[int, tuple[int, int]] = {}  # tag → first of its messages, how many
        self.lasts: set[int] = set()  # messages a receipt will name
        self.positions: dict[int, int] = {}  # of own messages, as far as one has said it
        self.prefix = f"{orders.name}.{orders.life}.".encode()
        self.room = True

    # -- as the node calls it --------------------------------------------------------------

    def deliver(self, batch: Batch) -> None:
        self.word.position = batch.seq + len(batch.bundle)
        if batch.sender != self.orders.name:
            return
        prefix = self.prefix
        for offset, data in enumerate(batch.bundle):
            if data.startswith(prefix):
                self.placed(int(data[len(prefix) :].rstrip(b" ")), batch.seq + offset)

    def receipt(self, receipt: Receipt) -> None:
        first, count = self.open.pop(receipt.tag)
        self.word.settled += count
        self.placed(first + count - 1, receipt.seq)  # a receipt names the last of its messages

    def placed(self, message: int, position: int) -> None:
        """One's own message is said to be at `position`, by its delivery or by its receipt."""
        if message in self.lasts:
            known = self.positions.pop(message, None)
            if known is None:
                self.positions[message] = position
            else:
                self.lasts.remove(message)
                self.word.false += known != position

    def refused(self, refusal: Refusal) -> None:
        _, count = self.open.pop(refusal.tag)
        self.word.doubtful += count

    def viewed(self, view: View) -> None:
        self.word.state = view.state

    def writable(self, group: str) -> None:
        self.room = True

    # -- the load --------------------------------------------------------------------------

    async def load(self) -> None:
        """Send all messages at the rate that was ordered; later if the node takes no more."""
        orders = self.orders
        loop = asyncio.get_running_loop()
        start = loop.time()
        while self.word.sent < orders.messages:
            due = min(orders.messages, int((loop.time() - start) * orders.rate) + 1)
            while self.word.sent < due and self.room:
                self.send(min(AT_ONCE, due - self.word.sent))
            await asyncio.sleep(TICK_S)

    def send(self, count: int) -> None:
        numbers = range(self.word.sent, self.word.sent + count)
        messages = [(self.prefix + b"%d" % n).ljust(self.orders.size) for n in numbers]
        tag = self.word.sent
        self.open[tag] = (tag, count)
        self.lasts.add(tag + count - 1)
        try:
            self.node.send(self, Send(GROUP, Bundle.of(*messages), tag))
        except QueueFull:
            del self.open[tag]
            self.lasts.remove(tag + count - 1)
            self.room = False
            return
        self.word.sent += count

    @property
    def engine(self) -> Any:
        data = self.node.group_hosts[GROUP].data
        return None if data is None else data.engine

    @property
    def holding(self) -> bool:
        """Whether we have the token."""
        token = self.engine.token if self.engine is not None else None
        return token is not None and token.holding

    def look_at_buffers(self) -> None:
        """Everything bounded stays within its bounds (I6)."""
        engine = self.engine
        if engine is None or self.word.over:
            return
        limits = engine.caps()
        for name, used in engine.usage().items():
            if used > limits.get(name, used):
                self.word.over = f"{name} has {used}, its limit is {limits[name]}"

    def look(self, error: str) -> Word:
        """What there is to say now."""
        self.look_at_buffers()
        word = self.word
        host = self.node.group_hosts[GROUP]
        if host.data is not None:
            word.position = max(word.position, host.data.position)
        word.waiting = bool(host.outbox or host.outbox.underway)
        word.error, word.holding = error, self.holding
        return word


async def run(orders: Orders) -> int:
    """The life of the process."""
    if orders.mutant:
        from roundelay.sim.mutants.registry import MUTANTS

        MUTANTS[orders.mutant].break_rule()
    keeps = NOTHING_LEFT if orders.wiped else DISK
    tracing = Tracing(Path(orders.traces), orders.name, level=orders.level, keeps=keeps)
    spec = GroupSpec(
        name=GROUP, protocol=TOKEN, members=orders.members, resilience=orders.resilience
    )
    config = NodeConfig(
        name=orders.name, dir=Path(orders.folder), secret=orders.secret, groups=(spec,),
        choice=Choice(via=orders.via, interface=orders.interface, name=orders.name), tracer=tracing,
        records=(RecordConfig(group=GROUP),) if orders.record else (),
    )  # fmt: skip
    node = Node(config)
    stop, go, die = asyncio.Event(), asyncio.Event(), asyncio.Event()
    node.on_fatal = lambda error: stop.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the one who started us decides

    def ordered() -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if b"go" in data:
            go.set()
        if b"die" in data:
            die.set()
        if not data:
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), ordered)
    await node.start()
    sender = SendingApplication(node, orders)
    node.join(sender, GROUP)

    def say() -> None:
        error = str(node.fatal) if node.fatal else tracing.error
        line = msgspec.json.encode(sender.look(error)) + b"\n"
        os.write(sys.stdout.fileno(), line)

    async def talk() -> None:
        while True:
            say()
            await asyncio.sleep(SAY_S)

    async def work() -> None:
        await go.wait()
        await sender.load()

    async def die_with_the_token() -> None:
        """The token stays for less than a turn of the event loop: look at it when it comes."""
        await die.wait()
        hosted: Any = node.group_hosts[GROUP].data
        receive = hosted.receive

        def last_received(*arguments: Any) -> None:
            receive(*arguments)
            if sender.holding:
                say()
                os.kill(os.getpid(), signal.SIGKILL)

        hosted.receive = last_received

    tasks = [asyncio.create_task(task()) for task in (talk, work, die_with_the_token)]
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    say()
    await node.stop()
    tracing.close()
    return 1 if node.fatal else 0


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    log_as_json()
    try:
        sys.exit(asyncio.run(run(orders)))
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more


if __name__ == "__main__":
    main()
