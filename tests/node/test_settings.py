"""Settings of a group: agreed at its founding, checked at every join, shown, never lowered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import roundelay
from roundelay import SettingsMismatch
from roundelay.core.errors import ConfigError, GroupFailed, Indeterminate
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.groups import parse_group
from roundelay.node.membership.settings import FILE, founded, level, wishes_of
from tests.node.live import Member, Net, delivered, together, until


async def ends(member: Member) -> BaseException:
    """Why a member's group is over."""
    with pytest.raises(SettingsMismatch) as caught:
        await asyncio.wait_for(member.group.ready(), 20.0)
    return caught.value


def settings_of(member: Member) -> Any:
    groups: Any = member.node.status()["groups"]
    (shown,) = groups
    return shown["settings"]


@pytest.mark.parametrize(
    ("service", "first", "second", "both"),
    [
        ("resilient", {"resilience": 1}, {"resilience": 2}, ("resilience = 2", "resilience = 1")),
        ("resilient", {}, {"resilience": 3}, ("resilience = 3", "as the size allows")),
        ("resilient", {}, {"min_members": 3}, ("min_members = 3", "min_members = 2")),
        ("total", {"hub": True}, {"hub": False}, ("hub = no", "hub = yes")),
    ],
)
async def test_who_asks_for_other_settings_is_refused_with_both_values(
    service: str, first: dict[str, Any], second: dict[str, Any], both: tuple[str, str]
) -> None:
    async with Net() as net:
        one = await net.join("a", service=service, **first)
        await until(lambda: one.group.view.members, "a group")
        other = await net.join("b", service=service, **second)
        error = str(await ends(other))
        assert both[0] in error
        assert both[1] in error
        third = await net.join("c", service=service)  # asks for nothing
        await together([one, third])
        assert settings_of(one) == settings_of(third)
        await third.group.broadcast(b"works")


async def test_who_asks_for_no_more_than_a_group_gives_that_follows_its_size() -> None:
    async with Net() as net:
        members = [await net.join("a"), await net.join("b", resilience=1)]
        members.append(await net.join("c", resilience=2))
        await together(members)
        receipt = await members[1].group.broadcast(b"x")
        assert receipt.resilience == 1, "three members: L is 1"


async def test_members_of_a_fixed_roster_with_different_settings(tmp_path: Path) -> None:
    """The one in the minority is refused; it hung, and the others with it."""
    async with Net() as net:
        members = ("a", "b", "c")
        joined = [
            await net.join(name, members=members, dir=tmp_path / name, resilience=level)
            for name, level in zip(members, (1, 1, 0), strict=True)
        ]
        error = str(await ends(joined[2]))
        assert "resilience = 0" in error
        assert "resilience = 1" in error
        assert "c has resilience = 0" in joined[0].group.view.state
        await joined[2].leave()
        again = await net.join("c", members=members, dir=tmp_path / "c")
        await together([*joined[:2], again])
        receipt = await again.group.broadcast(b"x")
        assert receipt.resilience == 1


async def test_a_fixed_roster_keeps_its_settings_over_restarts(tmp_path: Path) -> None:
    async with Net() as net:
        fixed: dict[str, Any] = {"members": ("a",), "dir": tmp_path}
        member = await net.join("a", **fixed)
        await member.group.ready()
        await member.leave()
        with pytest.raises(SettingsMismatch):
            await net.join("a", **fixed | {"members": ("a", "b")})
        # One of an earlier version has none: L was 1 there, or what the size allowed.
        (next(tmp_path.glob("groups/*")) / FILE).unlink()
        member = await net.join("a", **fixed)
        await member.group.ready()


async def test_a_group_without_a_roster_beside_one_with(tmp_path: Path) -> None:
    async with Net() as net:
        member = await net.join("a", members=("a",), dir=tmp_path)
        await member.group.ready()
        other = await net.join("b")
        assert "members = found by discovery" in str(await ends(other))


@pytest.mark.parametrize(
    "options", [{"service": "total", "resilience": 1}, {"hub": True}, {"min_members": 0},
                {"service": "fifo", "min_members": 1}]
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        roundelay.join("g", **options)


def test_l_follows_the_size() -> None:
    agreed = founded(parse_group("orders:resilient"))
    assert [level(agreed, size) for size in range(1, 9)] == [0, 1, 1, 1, 2, 2, 2, 2]
    agreed = founded(parse_group("orders:resilient:resilience=3"))
    assert [level(agreed, size) for size in (1, 3, 7, 9)] == [0, 1, 3, 3]


# -- too few members -----------------------------------------------------------------------


@pytest.mark.parametrize("service", ["resilient", "total", "partial", "reliable"])
async def test_one_alone_confirms_nothing(service: str) -> None:
    """It confirmed 69 broadcasts to itself that were discarded when it met the others."""
    async with Net() as net:
        one = await net.join("a", service=service, timeout=1.5)
        with pytest.raises(Indeterminate, match="waiting for a second member"):
            await one.group.broadcast(b"early")
        assert one.group.view.state == "open: waiting for a second member"
        assert not one.got
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.group.ready(), 0.2)
        two = await net.join("b", service=service)
        await together([one, two])
        await delivered([one, two], 1)
        assert one.data == two.data == [b"early"]
        if service == "resilient":
            assert (await one.group.broadcast(b"x")).resilience == 1


async def test_one_alone_confirms_when_asked_to() -> None:
    async with Net() as net:
        one = await net.join("a", min_members=1)
        await one.group.ready()
        receipt = await one.group.broadcast(b"x")
        assert (receipt.seq, receipt.resilience) == (0, 0)
        two = await net.join("b")
        await together([one, two])
        assert settings_of(two)["min_members"] == "1"
        await two.leave()
        await together([one])
        await one.group.broadcast(b"alone again")


async def test_settings_of_a_history_that_has_ended_are_nobodys_wish() -> None:
    async with Net() as net:
        one = await net.join("a", min_members=1)
        await one.group.ready()
        two = await net.join("b")
        await together([one, two])
        place: Any = two.node.group_hosts["token:g"]
        assert place.spec.min_members == 1
        place.epochs.forget()  # as where two histories have met
        assert place.settings is None
        assert place.spec.min_members is None


async def test_a_group_that_has_lost_members_waits_again() -> None:
    async with Net() as net:
        one, two = await net.form("ab", timeout=1.0)
        await one.group.broadcast(b"x")
        await two.leave()
        await until(lambda: one.group.view.members == ("a",), "alone")
        with pytest.raises(Indeterminate, match="waiting for a second member"):
            await one.group.broadcast(b"y")
        three = await net.join("c")
        await together([one, three])
        await delivered([three], 1)
        assert three.data == [b"y"]


# -- through a daemon ----------------------------------------------------------------------


@asynccontextmanager
async def daemon(member: Member) -> AsyncIterator[dict[str, str]]:
    """The node of a member, for others to go through."""
    server = FrontendServer(member.node, ("127.0.0.1:0",), name=member.name)
    await server.start()
    try:
        yield {"node": server.addresses[0]}
    finally:
        await server.close()


async def test_options_travel_through_a_daemon() -> None:
    async with Net() as net:
        host = await net.join("host", "other")
        async with daemon(host) as there:
            one = await roundelay.join("g", resilience=1, min_members=1, **there)
            await one.ready()
            assert (await one.broadcast(b"x")).resilience == 0
            shown: Any = host.node.status()["groups"]
            asked = next(group["settings"] for group in shown if group["group"] == "token:g")
            assert (asked["resilience"], asked["min_members"]) == ("1", "1")
            with pytest.raises(SettingsMismatch, match=r"resilience = 2 .* resilience = 1"):
                await roundelay.join("g", resilience=2, **there)
            plain = await roundelay.join("g", **there)
            await plain.ready()
            with pytest.raises(ConfigError):
                await roundelay.join("h", members=("x", "y"), service="fifo", **there)
            cluster = await roundelay.join("h", service="total", stage="accepted", **there)
            with pytest.raises(SettingsMismatch, match="stage = acknowledged"):
                await roundelay.join("h", service="total", stage="acknowledged", **there)
            for group in (one, plain, cluster):
                await group.leave()


async def test_a_wish_of_one_application_fails_nobody_else_at_its_node() -> None:
    """The group is met only later: all applications of the daemon were thrown out of it."""
    async with Net() as net:
        founder = await net.join("z", resilience=1, min_members=1)
        await founder.group.ready()
        host = await net.join("host", "other", service="fifo")
        async with daemon(host) as there:
            plain = await roundelay.join("g", **there)
            picky = await roundelay.join("g", resilience=3, **there)
            bold = await roundelay.join("g", min_members=7, **there)
            with pytest.raises(SettingsMismatch, match=r"resilience = 3 .* resilience = 1"):
                await asyncio.wait_for(picky.ready(), 20.0)
            with pytest.raises(SettingsMismatch, match=r"min_members = 7 .* min_members = 1"):
                await asyncio.wait_for(bold.ready(), 20.0)
            await plain.ready(members=2)
            await plain.broadcast(b"x")
            await plain.leave()


@pytest.mark.parametrize("through", ["node", "daemon"])
async def test_a_broadcast_that_waits_for_a_group_with_other_settings(through: str) -> None:
    """It was Refused, or through a daemon Indeterminate, though nothing had been sent."""
    async with Net() as net:
        founder = await net.join("z", resilience=1, min_members=1)
        await founder.group.ready()
        host = await net.join("host", "other", service="fifo")
        async with daemon(host) as there:

            async def broadcast(name: str) -> None:
                where = there if through == "daemon" else net.where() | {"name": name}
                picky = await roundelay.join("g", resilience=3, insecure=True, **where)
                try:
                    await asyncio.wait_for(picky.broadcast(b"never"), 20.0)
                finally:
                    await picky.leave()

            for name in ("p", "q", "r"):
                with pytest.raises(SettingsMismatch, match=r"resilience = 3 .* resilience = 1"):
                    await broadcast(name)
        assert founder.data == []


async def test_a_roster_cannot_be_asked_for_where_the_node_looks_for_members_already() -> None:
    """The group hung for ever, for all of the node's applications."""
    async with Net() as net:
        host = await net.join("host", "other", service="fifo")
        async with daemon(host) as there:
            plain = await roundelay.join("g", **there)
            with pytest.raises(SettingsMismatch, match=r"members = host,b .* by discovery"):
                await roundelay.join("g", members=("host", "b"), **there)
            await net.join("b")
            await plain.ready(members=2)
            await plain.leave()


async def test_what_an_application_asked_for_ends_with_it() -> None:
    async with Net() as net:
        host = await net.join("host", "other", service="fifo")
        async with daemon(host) as there:
            plain = await roundelay.join("g", **there)
            await (await roundelay.join("g", resilience=3, **there)).leave()
            founder = await net.join("a", resilience=1)  # the first by name
            await plain.ready(members=2)
            assert founder.error is None
            await plain.leave()


async def test_a_fixed_roster_of_others_than_have_the_group_is_refused(tmp_path: Path) -> None:
    """Both confirmed messages, at the same positions of one name."""
    async with Net() as net:
        fixed: dict[str, Any] = {"members": ("a", "b")}
        both = [await net.join(name, dir=tmp_path / name, **fixed) for name in "ab"]
        await together(both)
        other = await net.join("c", members=("c", "d"), dir=tmp_path / "c")
        error = str(await ends(other))
        assert "members = c,d" in error
        assert "members = a,b" in error
        found = await net.form("xy", "h")
        for name in "ef":
            late = await net.join(name, "h", dir=tmp_path / name, members=("e", "f"))
            assert "members = found by discovery" in str(await ends(late))
        await together(found)
        await both[0].group.broadcast(b"1")
        await found[0].group.broadcast(b"2")


async def test_one_alone_gives_way_to_a_fixed_roster(tmp_path: Path) -> None:
    async with Net() as net:
        stray = await net.join("z")
        await until(lambda: "second member" in stray.group.view.state, "alone")
        fixed = [await net.join(name, members=("a", "b"), dir=tmp_path / name) for name in "ab"]
        assert "members = a,b" in str(await ends(stray))
        await together(fixed)


async def test_who_may_not_be_admitted_is_told_so() -> None:
    """It asked for ever."""
    async with Net() as net:
        await net.form("ab", service="total", members=("a", "b"))
        other = await net.join("x", service="total")
        assert "members = a,b" in str(await ends(other))


async def test_a_stage_is_shown_and_refused_where_the_group_has_a_hub() -> None:
    async with Net() as net:
        one, two = await net.form("ab", service="total", hub=True)
        early = await net.join("c", service="total", stage="preacknowledged")
        await together([one, two, early])
        stages = [member.node.status()["groups"][0]["stage"] for member in (one, early)]  # type: ignore[index]
        assert stages == ["acknowledged", "preacknowledged"]
        late = await net.join("d", service="total", stage="accepted")
        with pytest.raises(GroupFailed, match=r"stage = accepted .* hub=yes"):
            await asyncio.wait_for(late.group.ready(), 20.0)
        await together([one, two, early])


@pytest.mark.parametrize(
    "options", [{"service": "fifo", "stage": "accepted"}, {"members": ("a", "x" * 65)},
                {"service": "journal", "config": "f", "stage": "accepted"}]
)  # fmt: skip
async def test_more_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        await roundelay.join("g", **options)


def test_an_application_cannot_make_its_node_unheard() -> None:
    """A member's name of 65 bytes, which no node has: others dropped all that the node said."""
    with pytest.raises(ConfigError, match="64 bytes"):
        wishes_of("to:g", {"members": ["a", "x" * 65]})
    assert wishes_of("to:g", {"members": []}).members == ()
