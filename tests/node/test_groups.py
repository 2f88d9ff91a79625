"""Names of groups, and groups as `--group` has them."""

from __future__ import annotations

import pytest

from roundelay.core.errors import ConfigError
from roundelay.node.groups import (
    MEMBERS_MAX,
    SERVICES,
    check_name,
    full_name,
    parse_group,
    plain_spec,
    protocol_of,
)


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("orders", "autorm"),
        ("token:orders", "token"),
        ("to:chat", "to"),
        ("po:chat", "po"),
        ("spo:chat", "spo"),
        ("pa:chat", "pa"),
        ("token:", "autorm"),  # nothing behind the prefix: a name like any other
        (":", "autorm"),
        ("TOKEN:orders", "autorm"),
        ("re: your mail", "autorm"),
        ("token:to:x", "token"),
        ("ümläut", "autorm"),
    ],
)
def test_the_prefix_selects_the_protocol(name: str, protocol: str) -> None:
    assert protocol_of(name) == protocol
    assert plain_spec(name).name == name
    assert plain_spec(name).protocol == protocol


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_gives_its_prefix_to_a_plain_name(service: str) -> None:
    protocol = SERVICES[service]
    full = full_name("orders", service)
    assert protocol_of(full) == protocol
    assert full_name(full, service) == full
    assert full == ("orders" if service == "fifo" else f"{protocol}:orders")


def test_a_prefix_and_another_service_contradict_each_other() -> None:
    with pytest.raises(
        ConfigError, match=r"service = total .* resilient for a group named token:x"
    ):
        full_name("token:x", "total")
    with pytest.raises(
        ConfigError, match=r"service = total .* resilient for a group named token:x"
    ):
        parse_group("token:x:total")


def test_a_name_has_1_to_255_bytes_and_no_control_characters() -> None:
    assert check_name("x" * 255)
    assert check_name("ü" * 127)
    for bad in ("", "x" * 256, "ü" * 128):
        with pytest.raises(ConfigError, match="1 to 255 bytes of UTF-8"):
            check_name(bad)
    for bad in ("a\0b", "a\nb", "\x7f", "\x1b[31m"):
        with pytest.raises(ConfigError, match="no control characters"):
            check_name(bad)
    with pytest.raises(ConfigError, match="1 to 255 bytes of UTF-8"):
        parse_group(f"{'x' * 250}:resilient")  # the prefix counts
    with pytest.raises(ConfigError, match="UTF-8"):
        check_name("\ud800")


def test_a_group_with_options_is_what_it_says() -> None:
    spec = parse_group("orders:resilient:members=a, b,c:resilience=0")
    assert (spec.name, spec.protocol, spec.service) == ("token:orders", "token", "resilient")
    assert spec.members == ("a", "b", "c")
    assert spec.fixed
    assert spec.resilience == 0
    plain = parse_group("a:b:c:total:stage=accepted:hub=yes")
    assert plain.name == "to:a:b:c"
    assert (plain.stage, plain.hub, plain.fixed) == ("accepted", True, False)
    assert parse_group("spo:x:selective").name == "spo:x"
    assert parse_group("chat:fifo").name == "chat"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "NAME:service"),
        ("orders", "NAME:service"),
        (":resilient", "1 to 255 bytes"),
        ("orders:best", "with a service of resilient, total"),
        ("token:orders:best", "with a service of resilient, total"),
        ("orders:resilient:colour=red", "options members, resilience, stage, hub"),
        ("orders:resilient:resilience=-1", "resilience = -1 .* a whole number from 0 on"),
        ("orders:resilient:resilience=128", "resilience = 128 .* 0 to 127"),
        ("orders:resilient:resilience=x", "resilience = x .* a whole number from 0 on"),
        ("orders:resilient:members=", "members = 0 .* 1 to 128 names"),
        ("orders:resilient:members=a,b,a", "members = a,b,a .* each name once"),
        ("orders:total:hub=perhaps", "hub = perhaps .* yes or no"),
        ("orders:fifo:members=a,b", "no options for fifo"),
    ],
)
def test_what_is_wrong_with_a_group_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_group(text)
    assert "\n" not in str(caught.value)


def test_a_roster_has_a_bound() -> None:
    names = ",".join(f"n{number}" for number in range(MEMBERS_MAX + 1))
    with pytest.raises(ConfigError, match=r"members = 129 .* 1 to 128 names"):
        parse_group(f"orders:resilient:members={names}")
