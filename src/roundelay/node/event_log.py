"""What a node writes to its log: events with fields, through `logging`.

A program that embeds a node finds them at the logger `roundelay.node` and decides what becomes of
them; each record has `event`, `node` and `fields` beside its text.  Where the node is the process,
as with `roundelay node`, `log_as_json` makes one JSON object a line of them.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

LOGGER: Final = "roundelay.node"
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class EventLog:
    """The log of one node: `log("warning", "group.gap", group="token:g", lo=3, hi=7)`."""

    def __init__(self, node: str, level: str) -> None:
        self._node = node
        self._least = LEVELS[level]
        self._logger = logging.getLogger(LOGGER)

    def __call__(self, level: str, event: str, **fields: object) -> None:
        number = LEVELS[level]
        if number >= self._least and self._logger.isEnabledFor(number):
            words = " ".join(f"{key}={value}" for key, value in fields.items())
            about = {"event": event, "node": self._node, "fields": fields}
            self._logger.log(number, "%s: %s %s", self._node, event, words, extra=about)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        about = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
            "node": getattr(record, "node", ""),
        }
        return json.dumps(about | getattr(record, "fields", {}), default=str)


class StandardError(logging.Handler):
    """Writes to whatever standard error is.

    Whoever reads it may be gone, and its disk full: a node does not stop for that."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """There is nowhere left to say so."""


def log_as_json() -> None:
    """Print the events of this process's nodes on standard error; what is enough for each node is
    for its `log_level` to say."""
    handler = StandardError()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
