"""Sets of positions, as half-open ranges in rising order: what a journal has, lacks, or let go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def union(ranges: Iterable[Range]) -> list[Range]:
    """All positions of `ranges`, which may be in any order, overlap, or be empty.

    >>> union([(5, 7), (0, 3), (3, 4), (6, 9), (12, 12)])
    [(0, 4), (5, 9)]
    """
    together: list[Range] = []
    for lo, hi in sorted(ranges):
        if together and lo <= together[-1][1]:
            together[-1] = (together[-1][0], max(together[-1][1], hi))
        elif lo < hi:
            together.append((lo, hi))
    return together


def difference(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The positions that are in `ranges` and not in `others`.

    >>> difference([(0, 10), (30, 40)], [(2, 4), (8, 35)])
    [(0, 2), (4, 8), (35, 40)]
    """
    rest: list[Range] = []
    taken, number = union(others), 0
    for lo, hi in union(ranges):
        while number < len(taken) and taken[number][1] <= lo:
            number += 1
        at = number
        while at < len(taken) and taken[at][0] < hi:
            start, end = taken[at]
            if start > lo:
                rest.append((lo, start))
            lo = max(lo, end)
            at += 1
        if lo < hi:
            rest.append((lo, hi))
    return rest


def intersection(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The positions that are in both; each is in order, and neighbours are left apart.

    >>> intersection([(0, 5), (5, 10)], [(3, 7), (9, 20)])
    [(3, 5), (5, 7), (9, 10)]
    """
    shared: list[Range] = []
    a = b = 0
    while a < len(ranges) and b < len(others):
        lo, hi = max(ranges[a][0], others[b][0]), min(ranges[a][1], others[b][1])
        if lo < hi:
            shared.append((lo, hi))
        if ranges[a][1] < others[b][1]:
            a += 1
        else:
            b += 1
    return shared


def count_of(ranges: Iterable[Range]) -> int:
    """How many positions there are in ranges that do not overlap."""
    return sum(hi - lo for lo, hi in ranges)
