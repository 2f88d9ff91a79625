"""The networks of a chaos run: our switch, or network namespaces joined by real bridges.

`SwitchNet` works anywhere and can do every fault.  `NamespaceNet` is real multicast: each site has
a network namespace with one interface, all of them on a bridge; a partition moves the interfaces
of one side to a second bridge.  It needs the privileges to make namespaces, and loses datagrams
only where the kernel has netem.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from roundelay.core.errors import ConfigError
from roundelay.faultnet.switch import Switch
from roundelay.runs.chaos import kinds

SWITCH: Final = "switch"
NAMESPACES: Final = "namespaces"
NETWORKS: Final = (SWITCH, NAMESPACES)

INTERFACE: Final = "eth0"
"""Of a site in its namespace."""


class SwitchNet:
    """Everything crosses a switch in this process."""

    interface = ""

    def __init__(self, seed: int) -> None:
        self.switch = Switch(seed=seed)
        self.names: list[str] = []
        self.via: tuple[str, int] | None = None

    async def start(self, names: Sequence[str]) -> None:
        await self.switch.start()
        self.names = list(names)
        self.via = self.switch.address

    def prefix(self, name: str) -> list[str]:
        """What to put before the command of a site."""
        return []

    def apply(self, rule: Mapping[str, Any]) -> None:
        """Do what a rule of the switch says."""
        self.switch.apply(rule)

    set_weather = apply  # loss and the like, from now on

    def separate(self, kind: str, names: list[str], lasts_s: float) -> None:
        """Keep `names` apart, from each other or from the rest."""
        rest = [name for name in self.names if name not in names]
        if kind == kinds.ONE_WAY:
            self.apply({"cut": names})
        elif kind == kinds.SPLIT:
            self.apply({"split": names})
        elif kind == kinds.CLOG:
            for to in rest:
                self.apply({"clog": {"from": names[0], "to": to, "ms": lasts_s * 1000}})
        else:
            flapping = {"on_ms": 300, "off_ms": 200} if kind == kinds.FLAP else {}
            self.apply({"partition": [names, rest], **flapping})

    def link(self, name: str, up: bool) -> None:
        """Let nobody hear `name`, nor be heard by it; or everybody again."""
        if up:
            self.heal()
        else:
            self.separate(kinds.PARTITION, [name], 0.0)

    def heal(self) -> None:
        self.apply({"heal": True})

    def clear(self) -> None:
        """No faults at all from now on."""
        self.apply({"clear": True})

    def stats(self) -> dict[str, Any]:
        stats = self.switch.stats()
        return {key: stats[key] for key in ("received", "forwarded", "dropped", "kinds", "faults")}

    async def close(self) -> None:
        await self.switch.close()


class NamespaceNet:
    """Real multicast between network namespaces, one for each site."""

    via: tuple[str, int] | None = None
    interface = INTERFACE

    def __init__(self) -> None:
        self.tag = "rl" + secrets.token_hex(2)  # interface names have 15 letters at most
        self.names: list[str] = []
        self.partitions = 0
        self.moves = 0
        self.addresses: dict[str, str] = {}
        self.netem = True

    def namespace(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def port(self, name: str) -> str:
        """The outer end of a site's cable."""
        return f"{self.tag}p{name}"

    def bridge(self, side: int) -> str:
        return f"{self.tag}b{side}"

    async def start(self, names: Sequence[str]) -> None:
        if not available():
            raise ConfigError("network", NAMESPACES, f"{SWITCH}: no namespaces can be made here")
        try:
            self._make(names)
        except BaseException:
            await self.close()
            raise

    def _make(self, names: Sequence[str]) -> None:
        for side in (0, 1):
            # Without snooping a bridge passes every multicast to all, as a plain switch does.
            ip(f"link add {self.bridge(side)} type bridge mcast_snooping 0")
            ip(f"link set {self.bridge(side)} up")
        for number, name in enumerate(names, 1):
            space = self.namespace(name)
            ip(f"netns add {space}")
            self.names.append(name)
            ip(f"link add {self.port(name)} type veth peer name {INTERFACE} netns {space}")
            ip(f"link set {self.port(name)} master {self.bridge(0)} up")
            self.addresses[name] = f"10.98.7.{number}/24"
            ip(f"-n {space} address add {self.addresses[name]} dev {INTERFACE}")
            ip(f"-n {space} link set lo up")
            ip(f"-n {space} link set {INTERFACE} up")

    def prefix(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace(name)]

    def set_weather(self, weather: Mapping[str, Any]) -> None:
        """Loss on the way to each site, if the kernel knows how."""
        loss = weather.get("loss", 0)
        if not loss:
            return
        for name in self.names:
            if self.netem:
                rule = f"root netem loss {100 * loss:g}%"
                self.netem = _tried(f"tc qdisc replace dev {self.port(name)} {rule}")

    def move(self, name: str) -> None:
        """Give a site's interface another address, while it is up."""
        self.moves += 1
        space = self.namespace(name)
        old = self.addresses[name]
        new = self.addresses[name] = f"10.98.7.{100 + self.moves % 100}/24"
        ip(f"-n {space} address del {old} dev {INTERFACE}")
        ip(f"-n {space} address add {new} dev {INTERFACE}")

    def link(self, name: str, up: bool) -> None:
        """Take a site's interface down, or up."""
        ip(f"-n {self.namespace(name)} link set {INTERFACE} {'up' if up else 'down'}")

    def separate(self, kind: str, names: list[str], lasts_s: float) -> None:
        """Partitions only: these go to the other bridge."""
        self.partitions += 1
        for name in names:
            ip(f"link set {self.port(name)} master {self.bridge(1)}")

    def heal(self) -> None:
        for name in self.names:
            ip(f"link set {self.port(name)} master {self.bridge(0)}")

    def clear(self) -> None:
        self.heal()
        for name in self.names:
            _tried(f"tc qdisc del dev {self.port(name)} root")

    def stats(self) -> dict[str, Any]:
        return {"netem": self.netem, "faults": {"partition:symmetric": self.partitions}}

    async def close(self) -> None:
        for name in self.names:
            _tried(f"ip link del {self.port(name)}")
            _tried(f"ip netns del {self.namespace(name)}")
        for side in (0, 1):
            _tried(f"ip link del {self.bridge(side)}")


def ip(command: str) -> None:
    """Run `ip`; ConfigError with its own message if it fails."""
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        error = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise ConfigError("network", NAMESPACES, f"{SWITCH}: ip {command}: {error}")


def _tried(command: str) -> bool:
    with suppress(OSError):
        return not subprocess.run(command.split(), capture_output=True, check=False).returncode
    return False


def available() -> bool:
    """Whether network namespaces with a bridge can be made here."""
    if os.name != "posix" or shutil.which("ip") is None:
        return False
    tag = "rl" + secrets.token_hex(3)
    space, bridge, port = f"{tag}-n", f"{tag}b", f"{tag}p"
    try:
        return (
            _tried(f"ip netns add {space}")
            and _tried(f"ip link add {bridge} type bridge mcast_snooping 0")
            and _tried(f"ip link add {port} type veth peer name {INTERFACE} netns {space}")
        )
    finally:
        _tried(f"ip link del {port}")
        _tried(f"ip link del {bridge}")
        _tried(f"ip netns del {space}")


def network(kind: str, seed: int) -> SwitchNet | NamespaceNet:
    """The network of that name."""
    return SwitchNet(seed) if kind == SWITCH else NamespaceNet()
