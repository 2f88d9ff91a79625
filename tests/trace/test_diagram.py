"""Space-time diagrams: everything that happened is in the picture, and the picture stays small."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.notices import notice
from roundelay.core.token.pdu import Ack, B, Invite
from roundelay.trace import Flattener, Recorder, TraceRow, draw, render
from roundelay.trace.diagram.style import LabelPlaces
from roundelay.trace.diagram.time_axis import Axis
from roundelay.trace.diagram.window import Window, choose, gather
from tests.trace.memory import Rows, trace_row

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


class Story:
    """A small run, written by hand."""

    def __init__(self, sites: int = 3) -> None:
        self.sites = sites
        self.rows: list[ev.Row] = []
        self.ref = 0

    def event(self, ms: float, site: int, event: int, obj: object = None) -> None:
        self.rows.append((int(ms * MS), site, event, -1, -1, obj))

    def send(
        self, ms: float, site: int, pdu: Pdu, lost: dict[int, str] | None = None, transit: float = 1
    ) -> None:
        """A multicast that reaches everybody `transit` ms later, but those in `lost`."""
        self.ref += 1
        self.rows.append((int(ms * MS), site, ev.SEND, self.ref, -1, pdu))
        for other in range(self.sites):
            if other != site and lost is not None and other in lost:
                self.rows.append((int(ms * MS), other, ev.LOSE, self.ref, site, lost[other]))
            elif other != site:
                time = int((ms + transit) * MS)
                self.rows.append((time, other, ev.RECEIVE, self.ref, site, None))

    def deliver(self, ms: float, site: int, seq: int, count: int = 1) -> None:
        bundle = Bundle.of(*[b"message"] * count)
        self.event(ms, site, ev.DELIVER, Delivery(seq, 0, seq, bundle, "committed"))

    def traffic(self, start: float, stop: float, step: float = 5) -> None:
        ms, n = start, int(start)
        while ms < stop:
            self.send(ms, 0, B((0, 0), 0, n, Bundle.of(b"x")))
            self.send(ms + 1.5, 1, Ack((0, 0), n, 1, 0, n, 1, 2))
            ms, n = ms + step, n + 1

    def source(self) -> Rows:
        flattener = Flattener()
        return Rows([trace_row(flattener, row) for row in self.rows], {"sites": self.sites})


@pytest.fixture
def story() -> Story:
    """A message, its acknowledgement with one copy lost, a crash, a new list."""
    story = Story()
    story.event(0, 0, ev.ROLE, ev.TOKEN)
    story.event(1, 1, ev.SUBMIT, Bundle.of(b"message"))
    story.send(1, 1, B((0, 0), 1, 7, Bundle.of(b"message")))
    story.send(2, 0, Ack((0, 0), 24, 1, 1, 7, 0, 1), lost={2: "loss"})
    story.event(2, 0, ev.ROLE, ev.PASSING)
    story.event(3, 1, ev.ROLE, ev.TOKEN)
    for site in (0, 1):
        story.deliver(3, site, 41, count=3)
    story.event(4, 0, ev.ROLE, ev.IDLE)
    story.event(6, 1, ev.CRASH, ev.DISK)
    story.event(7, 2, ev.PAUSE)
    story.event(8, 2, ev.RESUME)
    story.send(60, 0, Invite((1, 0), 7), lost={1: "down"})
    story.event(62, 0, ev.NOTICE, notice("view", (1, 0), (0, 2), 0, 44))
    story.event(62, 2, ev.NOTICE, notice("suspect", 1))
    story.event(63, -1, ev.FAULT, "partition <&>")
    story.event(64, 1, ev.RESTART, ev.DISK)
    story.event(65, -1, ev.MARK, ev.END)
    return story


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def hovers(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def test_everything_that_happened_is_in_the_picture(story: Story) -> None:
    svg = render(story.source(), 0, 66 * MS)
    words = texts(svg)
    for word in (
        "site 0", "site 1", "site 2", "B 1:7", "ACK 24→1", "INVITE 1.0", "41–43", "list 1.0",
        "suspect", "crash", "restart", "pause", "partition <&>", "end", "B (1)", "lost", "down",
        "holds the token", "3 PDUs",
    ):  # fmt: skip
        assert any(word in text for text in words), word


def test_hovering_tells_the_fields_of_a_pdu_and_the_fate_of_each_copy(story: Story) -> None:
    (ack,) = [text for text in hovers(render(story.source(), 0, 66 * MS)) if "ACK" in text]
    assert ack.splitlines() == [
        "ACK: site 0 to everyone, sent 2.000 ms",
        "list 0.0, ts 24, source 1, number 7, by 0, next 1, kind 1",
        "site 1: arrives 3.000 ms",
        "site 2: lost (loss)",
    ]


def test_a_lost_copy_ends_in_a_red_cross(story: Story) -> None:
    svg = render(story.source(), 0, 66 * MS)
    crosses = [
        path for path in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if path.get("stroke") == "#d11d2a"
    ]  # fmt: skip
    assert len(crosses) == 2 + 1  # two lost copies, and the legend


def test_the_picture_needs_nothing_from_outside(story: Story) -> None:
    svg = render(story.source())
    assert "<script" not in svg
    assert svg.count("http") == 1  # the name space
    assert "url(#" in svg


def test_a_file_gives_the_same_picture(story: Story, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with Recorder(path, params={"sites": 3}) as recorder:
        recorder.rows.extend(sorted(story.rows, key=lambda row: row[0]))
    draw(path, tmp_path / "spacetime.svg", 0, 66 * MS)
    assert (tmp_path / "spacetime.svg").read_text("utf-8") == render(story.source(), 0, 66 * MS)


def test_one_end_of_a_window_is_enough(story: Story) -> None:
    source = story.source()
    assert render(source, from_ns=0) == render(source, 0, 65 * MS + 1)
    assert render(source, to_ns=10 * MS) == render(source, 0, 10 * MS)


def test_a_site_that_went_down_before_the_window_is_shown_down(story: Story) -> None:
    svg = render(story.source(), 55 * MS, 63 * MS)
    assert any("down since 6.000 ms" in text for text in texts(svg))


def test_who_held_the_token_before_the_window_still_does(story: Story) -> None:
    scene = gather(story.source(), Window(3 * MS + 1, 5 * MS))
    assert [(s.site, s.state, s.since) for s in scene.stretches] == [
        (0, "passing", 2 * MS), (1, "token", 3 * MS),
    ]  # fmt: skip


def test_arrows_that_cross_the_edge_of_the_window_are_kept(story: Story) -> None:
    scene = gather(story.source(), Window(int(1.5 * MS), int(2.5 * MS)))
    assert [one.row.kind for one in scene.transmissions] == ["B", "ACK"]
    assert scene.arrows == 4


def test_hostile_names_stay_text() -> None:
    row = TraceRow(5, 0, "SEND", 1, -1, kind="<script>alert(1)</script>", info='{"a":"</svg>"}')
    end = TraceRow(9, 1, "RECEIVE", 1, 0)
    svg = render(Rows([row, end]), title="<b>&")
    assert "<script" not in svg
    assert "<b>" not in svg
    ElementTree.fromstring(svg)


# -- choosing a window -----------------------------------------------------------------------


def test_the_first_crash_is_chosen_with_the_list_that_follows() -> None:
    story = Story(5)
    for site in range(5):
        story.event(0, site, ev.NOTICE, notice("view", (0, 0), (0, 1, 2, 3, 4), 0, 0))
    story.traffic(0, 400)
    story.event(401, 4, ev.CRASH, ev.DISK)
    story.traffic(410, 440)
    story.event(445, 0, ev.NOTICE, notice("view", (1, 0), (0, 1, 2, 3), 0, 9))
    story.traffic(450, 900)
    window = choose(story.source())
    assert 350 * MS < window.from_ns < 401 * MS
    assert 445 * MS < window.to_ns < 500 * MS
    assert not window.skip_to
    assert 60 <= gather(story.source(), window).arrows <= 160


def test_the_dull_middle_of_a_long_recovery_is_left_out() -> None:
    story = Story(5)
    for site in range(5):
        story.event(0, site, ev.NOTICE, notice("view", (0, 0), (0, 1, 2, 3, 4), 0, 0))
    story.traffic(0, 400)
    story.event(401, 4, ev.CRASH, ev.DISK)
    story.traffic(410, 2000)
    story.event(2001, 0, ev.NOTICE, notice("view", (1, 0), (0, 1, 2, 3), 0, 9))
    story.traffic(2010, 3000)
    source = story.source()
    window = choose(source)
    assert window.from_ns < 401 * MS < window.skip_from < window.skip_to < 2001 * MS < window.to_ns
    scene = gather(source, window)
    assert 60 <= scene.arrows <= 200
    assert scene.skipped > 500
    assert any(f"{scene.skipped} PDUs left out" in text for text in texts(render(source)))


def test_else_the_first_change_of_list_the_first_loss_or_the_beginning_is_chosen() -> None:
    story = Story()
    story.traffic(0, 1000)
    assert choose(story.source()).from_ns == 0
    story.send(500, 2, B((0, 0), 2, 0, Bundle.of(b"x")), lost={0: "loss"})
    assert 400 * MS < choose(story.source()).from_ns < 500 * MS
    for ms, version in ((0, 0), (800, 1)):
        story.event(ms, 0, ev.NOTICE, notice("view", (version, 0), (0, 1, 2), 0, 0))
    assert 700 * MS < choose(story.source()).from_ns < 800 * MS


def test_a_trace_without_transmissions_is_drawn_whole() -> None:
    story = Story()
    story.event(3, -1, ev.MARK, ev.END)
    story.event(1, 0, ev.ROLE, ev.TOKEN)
    assert choose(story.source()) == Window(1 * MS, 3 * MS + 1)
    assert "end" in texts(render(story.source()))


# -- bounds and bad input --------------------------------------------------------------------


def test_too_many_arrows_are_cut_and_the_picture_says_so() -> None:
    story = Story()
    story.traffic(0, 7000)
    svg = render(story.source(), 0, 7000 * MS)
    assert svg.count("marker-end") <= 4000 + 2
    assert any("more than 4000 arrows" in text for text in texts(svg))
    width = float(ElementTree.fromstring(svg).get("width", "0"))
    assert width < 30_000


@pytest.mark.parametrize(
    "lo, hi, what", [(5, 5, "is empty"), (9, 3, "is empty"), (200, 300, "outside the trace")]
)
def test_a_window_that_cannot_be_is_refused_in_one_line(
    story: Story, lo: int, hi: int, what: str
) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        render(story.source(), lo * MS, hi * MS)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        render(tmp_path / "odd")


# -- parts -----------------------------------------------------------------------------------


def test_the_axis_never_goes_back_and_shortens_quiet_time() -> None:
    times = [0, 1 * MS, 2 * MS, 60 * MS, 61 * MS]
    axis = Axis(times, 0, 62 * MS, MS, left=10, width=500)
    xs = [axis.x(t) for t in range(-MS, 64 * MS, MS // 4)]
    assert xs == sorted(xs)
    assert [length for _, _, length in axis.breaks] == [58 * MS]
    assert axis.x(60 * MS) - axis.x(2 * MS) < axis.x(2 * MS) - axis.x(0)


def test_ticks_stand_at_round_times_outside_of_breaks() -> None:
    axis = Axis([5 * MS, 6 * MS, 90 * MS], 0, 95 * MS, MS, left=0, width=1000)
    ticks = axis.ticks()
    assert ticks
    for x, label in ticks:
        assert not any(x0 < x < x1 for x0, x1, _ in axis.breaks)
        assert axis.x(round(float(label.replace(",", "")) * MS)) == pytest.approx(x, abs=5)


def test_labels_do_not_cover_each_other_nor_leave_the_picture() -> None:
    places = LabelPlaces(0, 1000)
    assert places.take(100, 50, "hello", "start")
    assert not places.take(110, 52, "world", "start")
    assert places.take(110, 70, "world", "middle")
    assert not places.take(2, 90, "world", "end")
    assert not places.take(990, 90, "world", "start")


def test_sites_have_the_names_that_the_run_gave_them(story: Story) -> None:
    rows = story.source()
    rows.params["names"] = ["ann", "bob", "cat"]
    picture = render(rows, 0, 20 * MS)
    assert all(f">site {name}<" in picture for name in ("ann", "bob", "cat"))
    assert "site 1" not in picture
