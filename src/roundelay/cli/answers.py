"""What a node answers, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from roundelay.cli.output import console, literally, report, table

COLUMNS_MAX: Final = 7
MS: Final = 1_000_000


def show(content: Mapping[str, Any], as_json: bool) -> None:
    report(content, as_json, _print)


def show_why(content: Mapping[str, Any], as_json: bool) -> None:
    """Why a node is dead or alive: the verdict as a sentence, then what it rests on."""
    report(content, as_json, _print_why)


def _print_why(content: Mapping[str, Any]) -> None:
    screen = console()
    verdict = f"{content.get('node')}: {content.get('verdict')}"
    if content.get("reason"):
        verdict += f", {content['reason']}"
    screen.print(literally(verdict), style="bold", soft_wrap=True)
    _print(dict(_grounds(content)), 1)


def _grounds(content: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    yield "uuid", content.get("uuid")
    if content.get("silent_ns") is None or content.get("last_seen_ns") is None:
        return
    beats = content.get("heartbeats_ns") or []
    apart = ", ".join(f"{(b - a) / MS:,.0f}" for a, b in list(pairwise(beats))[-10:])
    yield (
        "heartbeats",
        f"{len(beats)} remembered" + (f"; last apart (ms): {apart}" if apart else ""),
    )
    factor, period = content.get("stale_factor"), content.get("heartbeat_period_ns")
    yield (
        "silence",
        f"{_ms(content['silent_ns'])}; dead after {_ms(content.get('stale_ns'))} "
        f"(stale factor {factor}, our heartbeat period {_ms(period)})",
    )
    yield (
        "environment",
        f"{content.get('nodes_local')} nodes known here, {_word(content.get('nodes_estimated'))} "
        f"estimated with trust {content.get('trust')}; it reports {content.get('reported')}",
    )
    last = content.get("last_retransmission_ns")
    now = content["last_seen_ns"] + content["silent_ns"]
    when = "never" if last is None else f"last {_ms(now - last)} ago"
    yield (
        "sent again",
        f"{content.get('packets_resent')} packets, {when}; "
        f"{content.get('rounds_without_progress')} rounds without progress",
    )
    yield "groups", content.get("groups") or "none"


def _print(content: Mapping[str, Any], indent: int = 0) -> None:
    """What is plain first, then what is nested."""
    screen = console()
    margin = "  " * indent
    plain = [_item(key, value) for key, value in content.items() if not _nested(value)]
    width = max((len(key) for key, _ in plain), default=0)
    for key, word in plain:
        screen.print(f"{margin}{literally(key):<{width}}  {literally(word)}", soft_wrap=True)
    for key, value in content.items():
        if isinstance(value, dict) and value:
            screen.print(f"{margin}{literally(key)}")
            _print(value, indent + 1)
        elif _nested(value):
            _print_list(key, value, indent)


def _print_list(key: str, items: list[dict[str, Any]], indent: int) -> None:
    screen = console()
    columns = list(dict.fromkeys(column for item in items for column in item))
    flat = not any(_nested(value) for item in items for value in item.values())
    if flat and len(columns) <= COLUMNS_MAX:
        grid = table(literally(key), *map(literally, columns))
        for item in items:
            grid.add_row(*(literally(_item(name, item.get(name))[1]) for name in columns))
        screen.print(grid)
        return
    for item in items:
        first = next(iter(item.values()), "")
        screen.print("  " * indent + literally(f"{key}: {_word(first)}"))
        _print(item, indent + 1)


def _nested(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _item(key: str, value: object) -> tuple[str, str]:
    """
    >>> _item("stale_ns", 2_000_000_000), _item("sealed", True)
    (('stale', '2,000 ms'), ('sealed', 'yes'))
    """
    if key.endswith("_ns") and isinstance(value, int):
        return key[:-3], _ms(value)
    return key, _word(value)


def _ms(value: Any) -> str:
    return "–" if value is None else f"{value / MS:,.0f} ms"


def _word(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list):
        return ", ".join(map(_word, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_word(item)}" for key, item in value.items()) or "none"
    return str(value)
