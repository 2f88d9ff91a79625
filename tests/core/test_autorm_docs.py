"""The page about AutoRM says where everything is, and it is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from roundelay.core.autorm.config import AutoRmConfig
from roundelay.core.engine import MS

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "autorm.md").read_text(encoding="utf-8")
SOURCES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (REPO / "src" / "roundelay" / "core" / "autorm").glob("*.py")
}
RULES = [f"AR-{k}" for k in range(1, 16)]
TESTS = " ".join(
    path.read_text(encoding="utf-8")
    for pattern in ("core/test_autorm*.py", "sim/test_autorm*.py", "wire/test_beamon.py",
                    "paper/test_autorm*.py")
    for path in sorted((REPO / "tests").glob(pattern))
)  # fmt: skip


@cache
def functions(name: str) -> dict[str, str]:
    """The functions of a module with their source."""
    source = SOURCES[name]
    return {
        node.name: ast.get_source_segment(source, node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    (line,) = re.findall(rf"^\| {rule} \| .*$", PAGE, flags=re.MULTILINE)
    places = re.findall(r"`(\w+\.py):(\w+)`", line)
    assert places
    for name, function in places:
        assert function in functions(name), f"{name} has no {function}"
    cited = [functions(name)[function] for name, function in places]
    assert any(re.search(rf"{rule}(?!\d)", text) for text in cited), f"{rule} is not cited there"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_that_names_it(rule: str) -> None:
    name = rule.lower().replace("-", "_")
    assert re.search(rf"def test_{name}_", TESTS), f"no test_{name}_…"


@pytest.mark.parametrize("k", range(1, 11))
def test_every_property_of_the_specification_has_a_test_that_names_it(k: int) -> None:
    assert re.search(rf"def test_ar_t{k}_", TESTS)
    assert re.search(rf"AR-T{k}(?!\d)", TESTS)


def test_every_parameter_is_listed_with_its_default() -> None:
    listed = {
        field: default.strip()
        for field, default in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
        if field in AutoRmConfig.__struct_fields__
    }
    assert listed.keys() == set(AutoRmConfig.__struct_fields__)
    for field, shown in listed.items():
        value = getattr(AutoRmConfig(), field)
        if isinstance(value, bool):
            assert shown == ("yes" if value else "no"), field
        elif field.endswith("_ns"):
            number, unit = shown.split()
            assert unit == "ms"
            assert value == int(number) * MS, field
        else:
            assert shown == str(value), field


def test_the_tests_it_names_exist() -> None:
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}" in TESTS, name
    for name in re.findall(r"`((?:src|tests)/[\w/]+\.py)`", PAGE):
        assert (REPO / name).exists(), name


def test_its_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    assert found["messages"] == [b"good morning"]
    assert found["when"] == found["node"].deadline  # type: ignore[attr-defined]
