"""Where an application goes on: a position belongs to a history, and nothing is passed over."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import roundelay
from roundelay.cli.main import cli
from roundelay.core.bundle import Bundle
from roundelay.core.engine import SECOND, Delivery
from roundelay.core.notices import notice
from roundelay.core.position import Position
from roundelay.node.frontend.server import FrontendServer
from roundelay.node.membership import reconfiguration
from roundelay.node.recording import memory
from roundelay.node.recording.asked import FITS, LONG_S, NONE, WAIT, Asked
from roundelay.node.recording.recorders import Recorders
from tests.node.live import Member, Net, delivered, membership_of, together, until


def seqs(member: Member) -> list[int | None]:
    return [message.seq for message in member.got]


async def error_of(member: Member, kind: type[BaseException]) -> Any:
    await until(lambda: member.error is not None, f"an error at {member.name}")
    assert isinstance(member.error, kind), repr(member.error)
    return member.error


async def say(member: Member, count: int, start: int = 0) -> None:
    await member.group.broadcast_many([b"%d" % i for i in range(start, start + count)])


@pytest.mark.parametrize("recorded", [True, False])
async def test_who_first_formed_another_history_gets_what_it_asked_for(
    recorded: bool, tmp_path: Path
) -> None:
    """Line 25: `since=240` got 1899 first, with a recorder that had everything."""
    async with Net("switch") as net:
        how: dict[str, Any] = {"record": True, "dir": tmp_path} if recorded else {}
        net.switch.apply({"partition": [["a", "b", "e"], ["c", "d"]]})
        first = [await net.join("a", **how), await net.join("b"), await net.join("e")]
        await together(first)
        await say(first[0], 40)
        c, d = await net.join("c", since=10), await net.join("d")
        await together([c, d])  # a history of their own, at position 0
        assert c.group.history != first[0].group.history
        await asyncio.sleep(0.3)
        net.switch.apply({"heal": True})
        await together([*first, c, d])
        await say(first[1], 5, 40)
        await delivered([c], 35)
        assert seqs(c) == list(range(10, 45))
        assert c.data == [b"%d" % i for i in range(10, 45)]
        assert c.group.position == roundelay.Position(first[0].group.history, 45)


async def test_a_position_of_the_future_is_refused_when_all_have_begun_anew() -> None:
    """Line 25: all members restarting with `since=last+1` got 302 confirmations, no delivery."""
    async with Net() as net:
        old = await net.form("ab")
        await say(old[0], 30)
        await delivered(old, 30)
        where = old[0].group.position
        assert where == roundelay.Position(old[0].group.history, 30)
        for member in old:
            await member.die()
        net.address = Net().address  # nobody is left to be heard of
        new = [await net.join("a", since=30), await net.join("b", since=str(where))]
        await together(new)
        await say(new[0], 40)  # more than there were before
        ahead = await error_of(new[0], roundelay.NoSuchPosition)
        assert ahead.asked.seq == 30
        assert ahead.present.history == new[0].group.history
        assert "30" in str(ahead)
        assert new[0].group.history in str(ahead)
        other = await error_of(new[1], roundelay.NoSuchPosition)
        assert other.asked == where
        assert str(where) in str(other)
        assert "another history" in str(other)
        assert seqs(new[0]) == seqs(new[1]) == []


async def test_a_position_of_this_history_is_gone_on_at() -> None:
    async with Net() as net:
        a, b = await net.form("ab")
        await say(a, 30)
        await delivered([b], 30)
        where = roundelay.Position(b.group.history, 12)
        c = await net.join("c", since=where)
        d = await net.join("d", since=31)
        await delivered([c], 18)
        assert seqs(c) == list(range(12, 30))
        ahead = await error_of(d, roundelay.NoSuchPosition)
        assert "future" in str(ahead)
        receipt = await a.group.broadcast(b"more")
        assert (receipt.history, receipt.seq) == (where.history, 30)


async def test_what_nobody_has_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line 5: the joiner began behind a gap, and only the log knew."""
    monkeypatch.setattr(memory, "BATCHES_MAX", 3)

    async with Net() as net:
        a, b = await net.form("ab")
        for i in range(20):
            await a.group.broadcast(b"%d" % i)
        await delivered([b], 20)
        c = await net.join("c", since=5)
        gap = await error_of(c, roundelay.MissingMessages)
        assert (gap.group, gap.first, gap.last) == ("token:g", 5, 16)
        assert c.got == []
        rest = []
        async with asyncio.timeout(20):
            async for message in c.group:  # who reads on gets what is behind it
                rest.append(message.seq)
                if len(rest) == 3:
                    break
        assert rest == [17, 18, 19]
        d = await net.join("d", since=5, missing="skip")
        await delivered([d], 3)
        assert (seqs(d), d.group.skipped) == ([17, 18, 19], 12)


async def test_who_was_away_for_long_gets_what_the_others_still_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Line 27: away for more than 20 s in a discovered group was a gap."""
    monkeypatch.setattr(reconfiguration, "FORGET_NS", 2 * SECOND)

    async with Net("switch") as net:
        members = a, b, c = await net.form("abc")
        await say(a, 10)
        await delivered(members, 10)
        net.switch.apply({"partition": [["a", "b"], ["c"]]})
        await say(a, 10, 10)
        await together([a, b])  # c is out, and a new roster has begun
        await say(b, 10, 20)
        await delivered([a, b], 30)
        net.switch.apply({"heal": True})
        await together(members, 40)
        await say(c, 1, 30)
        await delivered(members, 31)
        for member in members:
            assert member.data == [b"%d" % i for i in range(31)]
            assert member.error is None


async def test_the_same_is_said_through_a_daemon_and_by_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Line 5: in Python, `listen` and the frontend protocol alike."""
    monkeypatch.setattr(memory, "BATCHES_MAX", 3)

    async with Net() as net:
        a, b = await net.form("ab")
        for i in range(20):
            await a.group.broadcast(b"%d" % i)
        await delivered([b], 20)
        server = FrontendServer(b.node, ["127.0.0.1:0"], name="b")
        await server.start()
        where = server.addresses[0]

        async with roundelay.join("g", node=where, since=5) as group:
            with pytest.raises(roundelay.MissingMessages) as gap:
                await anext(aiter(group))
            assert (gap.value.first, gap.value.last) == (5, 16)
            assert (await anext(aiter(group))).seq == 17
        future = roundelay.Position(b.group.history, 21)

        async def refused(since: Any) -> None:
            async with roundelay.join("g", node=where, since=since) as group:
                with pytest.raises(roundelay.NoSuchPosition, match=b.group.history):
                    await anext(aiter(group))

        other = roundelay.Position("6f1d", 3)
        await asyncio.gather(*(refused(since) for since in (future, str(future), 21, other)))

        def blocking() -> list[int | None]:
            wanted = pytest.raises(roundelay.MissingMessages, match="5 to 16")
            with roundelay.join("g", node=where, since=5) as plain, wanted:
                next(iter(plain))
            with roundelay.join("g", node=where, since=5, missing="skip") as plain:
                found = next(iter(plain)).seq
                assert plain.skipped == 12
                assert plain.history == b.group.history
            return [found]

        assert await asyncio.to_thread(blocking) == [17]

        def listen(*options: str) -> tuple[int, str, str]:
            command = ["listen", "token:g", "--node", where, "--count", "3", *options]
            result = CliRunner().invoke(cli, command)
            error = "" if result.exception is None else str(result.exception)
            return result.exit_code, result.stdout, result.stderr + error

        ended = await asyncio.to_thread(listen, "--since", "5")
        assert (ended[0] != 0, ended[1]) == (True, "")
        assert "positions 5 to 16 (12 messages) are missing" in ended[2]
        skipped = await asyncio.to_thread(listen, "--since", "5", "--missing", "skip")
        assert skipped[:2] == (0, "17 a: 17\n18 a: 18\n19 a: 19\n")
        assert "12 messages before position 17 are missing" in skipped[2]
        await server.close()


async def test_a_history_that_goes_on_behind_a_record_has_its_positions(tmp_path: Path) -> None:
    """A group that begins anew behind what was recorded shares what is below."""
    async with Net() as net:
        a = await net.join("a", record=True, dir=tmp_path)
        b = await net.join("b")
        await together([a, b])
        await say(a, 10)
        await delivered([a, b], 10)
        old = b.group.position
        assert old is not None
        await b.leave()
        await a.leave()
        a = await net.join("a", record=True, dir=tmp_path)
        await until(lambda: a.group.view.members, "a group")
        c = await net.join("c", since=roundelay.Position(old.history, 4))
        d = await net.join("d", since=roundelay.Position(old.history, 11))
        await together([a, c, d])
        assert a.group.history.partition("@")[2] == f"{old.history}:10"
        await say(a, 2, 10)
        await delivered([c], 8)
        assert c.data == [b"%d" % i for i in range(4, 12)]
        refused = await error_of(d, roundelay.NoSuchPosition)
        assert "another history" in str(refused)


async def test_applications_are_told_when_two_histories_met() -> None:
    """What was given of the history that ends is not gone on with silently."""
    async with Net("switch") as net:
        net.switch.apply({"partition": [["a", "b", "e"], ["c", "d"]]})
        large = [await net.join(name) for name in "abe"]
        c, d = [await net.join(name) for name in "cd"]
        await together(large)
        await together([c, d])
        await say(large[0], 7)
        await say(c, 3)
        await delivered([c, d], 3)
        here = c.group.position
        net.switch.apply({"heal": True})
        await together([*large, c, d])
        await say(large[0], 1, 7)
        error = await error_of(c, roundelay.NoSuchPosition)
        assert (error.asked, error.present.seq) == (here, 7)
        assert seqs(c) == [0, 1, 2]
        assert (await anext(aiter(c.group))).seq == 7


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("stage", ["accepted", "preacknowledged"])
async def test_an_early_stage_delivers_nothing_again_when_the_roster_changes(
    stage: str, recorded: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Line 6: ten messages became twenty; without a recorder, a gap was logged that was none."""
    async with Net() as net:
        early: dict[str, Any] = {"service": "total", "stage": stage}
        keeps: dict[str, Any] = {"record": True, "dir": tmp_path} if recorded else {}
        a = await net.join("a", service="total", **keeps)  # when to deliver each decides
        b = await net.join("b", **early)
        await together([a, b])
        for i in range(10):
            receipt = await b.group.broadcast(b"%d" % i)
            assert receipt.seq == i
        await delivered([a, b], 10)
        c = await net.join("c", **early)  # and the roster changes
        await together([a, b, c])
        receipt = await c.group.broadcast(b"10")
        assert receipt.seq == 10  # the order goes on
        await delivered([a, b], 11)
        await delivered([c], 1)
        await c.leave()
        await together([a, b])
        assert (await a.group.broadcast(b"11")).seq == 11
        await delivered([a, b], 12)
        await asyncio.sleep(0.3)
        for member in (a, b):
            assert member.data == [b"%d" % i for i in range(12)]
            assert member.error is None
        assert seqs(a) == list(range(12))
        assert set(seqs(b)) == {None}  # what comes early has no place yet
        assert b.group.position is None
        if recorded:
            found = [(m.seq, m.data) async for m in b.group.replay()]
            assert found == [(i, b"%d" % i) for i in range(12)]
    assert "group.gap" not in caplog.text


async def test_places_that_everybody_has_forgotten_are_not_used_again() -> None:
    """A total group whose members all came back without memory, one after the other."""
    async with Net() as net:
        a, b = await net.form("ab", service="total")
        await say(a, 5)
        await delivered([a, b], 5)
        base, old = membership_of(a).base, a.group.history
        for member in (a, b):  # as the ring finds them that have a new life
            seat: Any = membership_of(member)
            seat.epochs.drop(seat.data)
            seat.data = None
        await until(lambda: {m.group.history for m in (a, b)}.isdisjoint({old}), "a history")
        receipt = await a.group.broadcast(b"new")
        assert (receipt.seq, receipt.history) == (base, a.group.history)
        assert a.group.history.partition("@")[2] == f"{old}:{base}"
        for member in (a, b):
            error = await error_of(member, roundelay.NoSuchPosition)
            assert error.asked == roundelay.Position(old, 5)


async def test_who_has_no_engine_in_an_epoch_goes_on_where_it_was_in_the_next() -> None:
    """A member of a total group that comes back in the middle of an epoch sits that one out."""
    async with Net() as net:
        a, b, c = await net.form("abc", service="total")
        await say(a, 3)
        await delivered([a, b, c], 3)
        seat: Any = membership_of(c)
        enter = seat.epochs._enter_data
        sat_out: list[tuple[Any, ...]] = []

        def enter_data(*how: Any) -> None:
            if sat_out:
                enter(*how)
            sat_out.append(how)

        seat.epochs._enter_data = enter_data
        await net.join("d", service="total")
        await until(lambda: sat_out, "an epoch without an engine")
        await say(a, 5, 3)
        await delivered([a, b, c], 8)
        assert c.error is None
        assert seqs(c) == list(range(8))


class Reading:
    """An application of a daemon, and what it was given."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.got: list[int | None] = []
        self.error: BaseException | None = None
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self.group:
                self.got.append(message.seq)
        except roundelay.RoundelayError as error:
            self.error = error


@pytest.mark.parametrize("since", [0, "start", datetime(2020, 1, 1)])
async def test_an_application_of_a_node_that_was_alone_at_first_gets_what_it_asked_for(
    since: Any, tmp_path: Path
) -> None:
    """Line 25: one that asked for what comes next in an empty history of its node's own counted as
    caught up.  In the other one it was told that nobody had the beginning, and of a time nothing
    at all, with a recorder that had everything."""
    async with Net("switch") as net:
        net.switch.apply({"partition": [["a", "b"], ["c"]]})
        a, b = await net.join("a", record=True, dir=tmp_path), await net.join("b")
        await together([a, b])
        await say(a, 40)
        c = await net.join("c")
        await until(lambda: c.group.view.state.startswith("open: waiting"), "c is alone")
        server = FrontendServer(c.node, ["127.0.0.1:0"], name="c")
        await server.start()
        group = await roundelay.join("g", node=server.addresses[0], since=since)
        reading = Reading(group)
        await until(lambda: group.history == c.group.history, "it is in the history of c")
        await asyncio.sleep(1.5)
        net.switch.apply({"heal": True})
        await together([a, b, c])
        await say(b, 5, 40)
        await until(lambda: reading.error or 44 in reading.got, "the last message")
        assert reading.error is None
        assert reading.got == list(range(45))
        await group.leave()
        await server.close()


async def test_a_position_is_not_refused_while_the_group_waits_for_members() -> None:
    """A node that is started before its links are up, or comes back in a split network, knows no
    history but an empty one of its own: its applications were told that their position is none."""
    async with Net("switch") as net:
        net.switch.apply({"partition": [["a", "b"], ["c"]]})
        a, b = await net.join("a"), await net.join("b")
        await together([a, b])
        await say(a, 40)
        c = await net.join("c", since=roundelay.Position(a.group.history, 30))
        await until(lambda: c.group.view.state.startswith("open: waiting"), "c is alone")
        await asyncio.sleep(4.0)  # longer than a position may not fit
        assert c.error is None
        net.switch.apply({"heal": True})
        await together([a, b, c])
        await delivered([c], 10)
        assert seqs(c) == list(range(30, 40))


async def test_a_member_that_is_far_behind_does_not_refuse_where_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wiped member at 30 % loss was at 4 when its application came back to position 25, and
    after three seconds it was told that 25 is in the future."""
    async with Net() as net:
        a, b = await net.form("ab")
        await say(a, 40)
        await delivered([a, b], 40)
        position = Recorders.position
        behind = True

        def lagging(recorders: Recorders, group: str) -> int:
            real = position(recorders, group)
            return min(real, 4) if behind and recorders.node.name == "c" else real

        monkeypatch.setattr(Recorders, "position", lagging)
        c = await net.join("c", since=roundelay.Position(a.group.history, 25))
        d = await net.join("d", since=roundelay.Position(a.group.history, 41))
        await together([a, b, c, d])
        await asyncio.sleep(LONG_S + 1)
        assert c.error is None
        behind = False
        await say(b, 5, 40)
        await delivered([c], 20)
        assert seqs(c) == list(range(25, 45))
        future = await error_of(d, roundelay.NoSuchPosition)
        assert "future" in str(future)
        assert d.got == []


def looks(asked: Asked, times: range, position: int, known_end: int = 0, step: int = 0) -> str:
    """The last verdict on a position by a member that looks every second and goes on by `step`."""
    verdict = WAIT
    for now in times:
        verdict = asked.look(
            "6f1d",
            position + step * (now - times[0]),
            float(now),
            known_end=known_end,
            works=True,
            alone=False,
            from_disk=False,
        )
        if verdict != WAIT:
            return verdict
    return verdict


def test_a_position_fits_when_others_of_its_history_are_that_far() -> None:
    assert looks(Asked(Position("6f1d", 25), True, ""), range(1), position=4, known_end=25) == FITS
    assert looks(Asked(Position("6f1d", 25), True, ""), range(10), position=4, known_end=24) == NONE


def test_a_member_that_gets_further_is_waited_for_and_not_for_ever() -> None:
    assert looks(Asked(Position("6f1d", 25), True, ""), range(12), position=4, step=2) == FITS
    asked = Asked(Position("6f1d", 1_000), True, "")
    assert looks(asked, range(12), position=4, step=2) == WAIT
    assert looks(asked, range(12, 20), position=28, step=2) == NONE


def test_a_number_without_a_history_is_compared_with_where_the_member_entered() -> None:
    asked = Asked(Position("", 25), True, "")
    assert looks(asked, range(10), position=4, known_end=40, step=10) == NONE


def test_a_time_is_gone_on_at_from_memory_or_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Line 5: without a recorder `since=` a time began at the present, and only the log knew."""

    async def test() -> None:
        async with Net() as net:
            members = a, b = await net.form("ab")
            for i in range(10):
                await a.group.broadcast(b"%d" % i)
            await delivered(members, 10)
            await asyncio.sleep(0.1)
            middle = datetime.now(UTC)
            await asyncio.sleep(0.1)
            for i in range(10, 20):
                await a.group.broadcast(b"%d" % i)
            await delivered(members, 20)
            c = await net.join("c", since=middle)
            d = await net.join("d", since=datetime(2020, 1, 1))
            await delivered([c], 10)
            await delivered([d], 20)
            assert (seqs(c), seqs(d)) == (list(range(10, 20)), list(range(20)))

            monkeypatch.setattr(memory, "BATCHES_MAX", 3)
            await a.group.broadcast(b"20")
            await delivered([a, b, c, d], 11)
            e = await net.join("e", since=middle)
            gap = await error_of(e, roundelay.MissingMessages)
            assert (gap.first, gap.last) == (0, 17)
            await until(lambda: e.group.inbox.bytes > 0, "what is behind it")
            assert (await e.group.receive(timeout=20)).seq == 18


@pytest.mark.parametrize("named", [False, True])
async def test_what_comes_with_a_view_is_of_the_history_that_the_view_names(
    named: bool, tmp_path: Path
) -> None:
    """Positions of the new history were given as those of the old one, and then the application
    was told that there is no such position to go on at."""
    options: dict[str, Any] = {"members": ("a", "b")} if named else {}

    async with Net() as net:
        a, b = [await net.join(name, dir=tmp_path / name, **options) for name in "ab"]
        await together([a, b])
        await say(b, 1)
        await delivered([a, b], 1)
        was = a.group.view.history
        hosted: Any = membership_of(a).data
        engine = hosted.token
        one = engine.token_list.history[0]
        engine.token_list.history = (one ^ 1, one, 1)
        engine.out.deliveries.append(Delivery(1, 1, 1, Bundle.of(b"new"), "committed"))
        engine.out.notices.append(notice("view", engine.tl, engine.token_list.members, 0, 1))
        hosted.carry_out(time.monotonic_ns())
        await delivered([a], 2)
        history = f"{one ^ 1:016x}@{was}:1"
        assert a.group.view.history == history
        assert a.group.position == Position(history, 2)
        assert a.error is None
