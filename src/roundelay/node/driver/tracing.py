"""Which trace a group gets: the `tracer` of a node's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundelay.core.events import DISK
from roundelay.node.groups import family_of, protocol_of
from roundelay.trace.live import ALL, LiveTrace


class Tracing:
    """Makes a `LiveTrace` in `folder` for every group of the node `name`.

    A group without a fixed roster has a trace for every roster it had, named after the group and
    the roster: members and positions are counted anew in each.  `roundelay check` judges them.
    """

    def __init__(self, folder: Path, name: str, *, level: str = ALL, keeps: str = DISK) -> None:
        self.folder = folder
        self.name = name
        self.level = level
        self.keeps = keeps
        self.traces: list[LiveTrace] = []

    def __call__(self, group: str, member: int, **known: Any) -> LiveTrace:
        """`known` is what else a checker needs to know, as `resilience` of a token group."""
        params = {"protocol": protocol_of(group), "order": family_of(group).order} | known
        trace = LiveTrace(
            self.folder,
            group=group,
            name=self.name,
            site=member,
            params=params,
            keeps=self.keeps,
            level=self.level,
        )
        self.traces.append(trace)
        return trace

    @property
    def error(self) -> str:
        """Why a trace has ended before its process."""
        return next((trace.error for trace in self.traces if trace.error), "")

    def close(self) -> None:
        """Write what is left."""
        for trace in self.traces:
            trace.close()
        self.traces.clear()
