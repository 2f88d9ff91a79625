"""What a node writes to its log, and as what."""

from __future__ import annotations

import json
import logging

import pytest

from roundelay.node.event_log import LOGGER, EventLog, JsonFormatter, log_as_json


def test_a_program_that_embeds_a_node_has_its_events_from_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog("a", "warning")
    log("info", "group.view", group="token:g")
    log("warning", "group.gap", group="token:g", lo=3)
    (record,) = caplog.records
    assert record.name == LOGGER == "roundelay.node"
    assert record.getMessage() == "a: group.gap group=token:g lo=3"
    line = json.loads(JsonFormatter().format(record))
    assert list(line) == ["time", "level", "event", "node", "group", "lo"]
    assert (line["level"], line["event"], line["node"], line["lo"]) == (
        "warning",
        "group.gap",
        "a",
        3,
    )


def test_a_daemon_prints_one_json_object_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger(LOGGER)
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))  # put back at the end
    try:
        log_as_json()
        EventLog("a", "info")("info", "node.ready", medium="udp", path=ValueError("any object"))
    finally:
        logger.setLevel(logging.NOTSET)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line) | {"time": 0} == {
        "time": 0,
        "level": "info",
        "event": "node.ready",
        "node": "a",
        "medium": "udp",
        "path": "any object",
    }
