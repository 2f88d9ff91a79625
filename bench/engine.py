"""What the token engine and the codec cost per message, without sockets.

Four sites of the `fast` profile in one process, all of them sources that always have something to
send.  Every PDU is encoded once and decoded by each of the three others, as on the wire; what is
delivered is cut into messages at every site.  Prints, for messages of 64 bytes and of 1 KiB,

- how many messages a second all four sites together order on this one processor (a group of four
  processes has the same work to do, and the sockets in addition);
- microseconds per message and site, and per bundle, by stage;

for three ways to submit: ready bundles as large as a PDU takes them, one message at a time, and one
message at a time that waits for its commit (the idle group: nothing to gather).

Seconds are those of the processor.

    python -m bench.engine [--seconds 2] [--payload 60000] [--sites 4] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import deque
from random import Random
from time import process_time
from typing import Any

from roundelay.core.bundle import Bundle
from roundelay.core.engine import EVERYONE, Effects
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.wire.codec import decode, encode, group_id

GROUP = group_id("bench")
STAGES = ("submit", "encode", "decode", "engine", "cut")
READY, SINGLE, ISOLATED = "ready bundles", "one by one", "isolated"
DRAIN = 64
"""Datagrams a site takes in one turn, as a live node does."""


class Loop:
    """Four sites and the bytes between them."""

    def __init__(self, sites: int, config: TokenConfig) -> None:
        group = tuple(range(sites))
        self.sites = [TokenSite(me, group, config, Random(me)) for me in group]
        self.inboxes: list[deque[bytes]] = [deque() for _ in group]
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.delivered = [0] * sites
        self.bundles = 0
        self.pdus = 0
        self.sent_bytes = 0
        self.now = 0
        for site in self.sites:
            self.carry_out(site)

    def carry_out(self, site: TokenSite) -> None:
        effects: Effects = site.take()
        if not effects:
            return
        seconds, me = self.seconds, site.me
        for destination, pdu, _ in effects.sends:
            start = process_time()
            data = encode(pdu, sender=me, group_id=GROUP, chan_seq=self.pdus)
            seconds["encode"] += process_time() - start
            self.pdus += 1
            self.sent_bytes += len(data)
            if destination == EVERYONE:
                for other, inbox in enumerate(self.inboxes):
                    if other != me:
                        inbox.append(data)
            else:
                self.inboxes[destination].append(data)
        start = process_time()
        for delivery in effects.deliveries:
            self.delivered[me] += len(list(delivery.bundle))
            self.bundles += 1
        seconds["cut"] += process_time() - start

    def turn(self, site: TokenSite) -> None:
        """What one wake-up of a live node does."""
        inbox, seconds = self.inboxes[site.me], self.seconds
        for _ in range(min(DRAIN, len(inbox))):
            start = process_time()
            envelope = decode(inbox.popleft())
            middle = process_time()
            site.receive(envelope.pdu, envelope.sender, self.now)
            seconds["decode"] += middle - start
            seconds["engine"] += process_time() - middle
        if site.deadline <= self.now:
            site.on_timer(self.now)
        self.carry_out(site)

    def submit(self, site: TokenSite, bundles: list[Bundle]) -> None:
        start = process_time()
        for bundle in bundles:
            site.submit(bundle, self.now)
        self.seconds["submit"] += process_time() - start


def run(way: str, size: int, sites: int, payload: int, seconds: float) -> dict[str, Any]:
    """Order messages for about `seconds`."""
    config = TokenConfig.fast(resilience=1, max_payload=payload)
    loop = Loop(sites, config)
    message = bytes(size)
    many = max(1, payload // size)
    single = [Bundle.of(message)]
    ready = [Bundle.of(*[message] * many)]
    gathered = single * min(many, 2048)
    begin = process_time()
    turns = 0
    while process_time() - begin < seconds:
        turns += 1
        loop.now += 1000
        for site in loop.sites:
            if way == READY:
                if len(site.own.waiting) < 1:
                    loop.submit(site, ready)
            elif way == SINGLE:
                if len(site.own.waiting) < 1:
                    loop.submit(site, gathered)
            elif site.me == turns % sites and not (site.own.waiting or site.own.kept):
                loop.submit(site, single)
            loop.turn(site)
        if way == ISOLATED:
            for _ in range(4):
                for site in loop.sites:
                    loop.turn(site)
    elapsed = process_time() - begin
    messages = min(loop.delivered)
    total = sum(loop.delivered)
    return {
        "way": way,
        "size": size,
        "messages_per_s": messages / elapsed,
        "us_per_message": elapsed * 1e6 / total,
        "us_per_pdu": elapsed * 1e6 / loop.pdus,
        "messages_per_bundle": total / loop.bundles,
        "pdus_per_bundle": loop.pdus * sites / loop.bundles,
        "bytes_per_message": loop.sent_bytes / messages,
        "us_per_bundle": {
            stage: spent * 1e6 / loop.bundles for stage, spent in loop.seconds.items()
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--payload", type=int, default=60_000, help="bytes in one bundle, at most")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found = [
        run(way, size, options.sites, options.payload, options.seconds)
        for way in (READY, SINGLE, ISOLATED)
        for size in (64, 1024)
    ]
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {options.sites} sites, "
        f"bundles of up to {options.payload} bytes, one processor for all of them\n"
    )
    print(
        f"{'':22}{'messages/s':>12}{'us/message':>12}{'us/PDU':>9}{'messages':>10}{'PDUs':>7}"
        f"{'bytes':>8}   us per bundle and site"
    )
    print(
        f"{'':22}{'all sites':>12}{'and site':>12}{'all':>9}{'a bundle':>10}{'':>7}{'/message':>8}"
        f"   {'  '.join(f'{stage:>7}' for stage in STAGES)}"
    )
    for one in found:
        stages = "  ".join(f"{one['us_per_bundle'][stage]:7.1f}" for stage in STAGES)
        print(
            f"{one['way']:14}{one['size']:>6} B{one['messages_per_s']:12,.0f}"
            f"{one['us_per_message']:12.3f}{one['us_per_pdu']:9.1f}"
            f"{one['messages_per_bundle']:10.1f}{one['pdus_per_bundle']:7.2f}"
            f"{one['bytes_per_message']:8.1f}   {stages}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
