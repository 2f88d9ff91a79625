"""What a page about a protocol says, held against the sources and the tests it speaks of."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import msgspec

from roundelay.core.engine import MS

REPO = Path(__file__).resolve().parents[2]


class Page:
    """A page of docs/, the sources of the room it describes, and the text of that room's tests."""

    def __init__(self, name: str, room: str, tests: tuple[str, ...]) -> None:
        self.text = (REPO / "docs" / name).read_text(encoding="utf-8")
        self.sources = {
            path.name: path.read_text(encoding="utf-8")
            for path in (REPO / "src" / "roundelay" / "core" / room).glob("*.py")
        }
        self.tests = " ".join(
            path.read_text(encoding="utf-8")
            for pattern in tests
            for path in sorted((REPO / "tests").glob(pattern))
        )
        self.functions = {name: _functions(text) for name, text in self.sources.items()}

    def places_of(self, rule: str) -> list[tuple[str, str]]:
        """Where the page says a rule is: modules and functions, each with the source there."""
        (line,) = re.findall(rf"^\| {rule} \| .*$", self.text, flags=re.MULTILINE)
        places = re.findall(r"`(\w+\.py):(\w+)`", line)
        assert places, f"{rule} has no place"
        for name, function in places:
            assert function in self.functions[name], f"{name} has no {function}"
        return [(f"{name}:{function}", self.functions[name][function]) for name, function in places]

    def has_a_test_named(self, *names: str) -> bool:
        return any(f"def test_{name}_" in self.tests for name in names)

    def names_of_tests_and_modules_that_do_not_exist(self) -> list[str]:
        gone = [
            name for name in re.findall(r"`(test_\w+)`", self.text)
            if f"def {name}" not in self.tests
        ]  # fmt: skip
        files = re.findall(r"`((?:src|tests)/[\w/]+\.py)`", self.text)
        return gone + [name for name in files if not (REPO / name).exists()]

    def has_every_default_of(self, config: type[msgspec.Struct]) -> None:
        """The page's table lists each field of a configuration with its default."""
        listed = {
            field: default.strip()
            for field, default in re.findall(
                r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", self.text, re.MULTILINE
            )
            if field in config.__struct_fields__
        }
        assert listed.keys() == set(config.__struct_fields__)
        for field, shown in listed.items():
            value = getattr(config(), field)
            if isinstance(value, bool):
                assert shown == ("yes" if value else "no"), field
            elif field.endswith("_ns"):
                number, unit = shown.split()
                assert unit == "ms"
                assert value == int(number) * MS, field
            else:
                assert shown == str(value), field


def cites(rule: str, text: str) -> bool:
    return re.search(rf"{rule}(?!\d)", text) is not None


def _functions(source: str) -> dict[str, str]:
    """The functions of a module with their source; those of one name together."""
    found: dict[str, str] = defaultdict(str)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            found[node.name] += ast.get_source_segment(source, node) or ""
    return found
