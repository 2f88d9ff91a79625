"""The live benchmark measures what it says: a small run of each of its parts."""

from __future__ import annotations

from pathlib import Path

from bench import throughput
from bench.children import Child, Children
from bench.live_member import CUT, OBJECTS
from bench.raw_udp import SLICES, STRUCT, by_slices, by_struct, datagram


def test_both_ways_to_cut_a_raw_datagram_find_its_messages() -> None:
    data = datagram(64, 6_602)
    assert len(data) <= 6_602
    assert by_slices(data) == list(by_struct(data)) == [bytes(64)] * 100


def test_a_live_group_is_measured(tmp_path: Path) -> None:
    with throughput.group_of(2, tmp_path, resilience=0) as members:
        throughput.together(members)
        for way in (CUT, OBJECTS):
            found = throughput.live_rate(members, 64, way, 0.5)
            assert found["rate"] > 0
            assert found["peak_mb"] > 1
        assert len(throughput.live_trips(members, 0.5)) == throughput.LATENCY_RATE // 2


def test_raw_udp_is_measured() -> None:
    with Children(Child("bench.raw_udp") for _ in range(3)) as bare:
        for cut in (SLICES, STRUCT):
            assert throughput.raw_rate(bare, 1024, cut, 0.5, 0.0)["rate"] > 0
        assert len(throughput.raw_trips(bare, 0.1)) == throughput.LATENCY_RATE // 10
