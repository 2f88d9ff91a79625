"""The page about GRSB says where everything is, and it is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from roundelay.core.engine import MS
from roundelay.core.grsb.config import PROFILES, GrsbConfig

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "grsb.md").read_text(encoding="utf-8")
SOURCES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (REPO / "src" / "roundelay" / "core" / "grsb").glob("*.py")
}
RULES = [f"GR-{k}" for k in range(1, 29)]
TESTS = " ".join(
    path.read_text(encoding="utf-8")
    for pattern in ("core/test_grsb*.py", "sim/test_grsb*.py", "paper/test_grsb*.py")
    for path in sorted((REPO / "tests").glob(pattern))
)


@cache
def functions(name: str) -> dict[str, str]:
    """The functions of a module with their source; those of one name together."""
    source = SOURCES[name]
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            text = ast.get_source_segment(source, node) or ""
            found[node.name] = found.get(node.name, "") + text
    return found


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    (line,) = re.findall(rf"^\| {rule} \| .*$", PAGE, flags=re.MULTILINE)
    places = re.findall(r"`(\w+\.py):(\w+)`", line)
    assert places
    for name, function in places:
        assert function in functions(name), f"{name} has no {function}"
        text = functions(name)[function]
        assert re.search(rf"{rule}(?!\d)", text), f"{rule} is not cited in {name}:{function}"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_that_names_it(rule: str) -> None:
    name = rule.lower().replace("-", "_")
    assert re.search(rf"def test_{name}_", TESTS), f"no test_{name}_…"


@pytest.mark.parametrize("k", [k for k in range(1, 13) if k != 11])
def test_every_property_of_the_specification_has_a_test_that_names_it(k: int) -> None:
    # GR-T11 is the Security Controller's.
    assert re.search(rf"def test_gr_t{k}_", TESTS)
    assert re.search(rf"GR-T{k}(?!\d)", TESTS)


def test_every_parameter_is_listed_with_its_default() -> None:
    listed = {
        field: default.strip()
        for field, default in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
        if field in GrsbConfig.__struct_fields__
    }
    assert listed.keys() == set(GrsbConfig.__struct_fields__)
    for field, shown in listed.items():
        value = getattr(GrsbConfig(), field)
        if isinstance(value, bool):
            assert shown == ("yes" if value else "no"), field
        elif field.endswith("_ns"):
            number, unit = shown.split()
            assert unit == "ms"
            assert value == int(number) * MS, field
        else:
            assert shown == str(value), field


def test_the_tests_modules_and_profiles_it_names_exist() -> None:
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}" in TESTS, name
    for name in re.findall(r"`((?:src|tests)/[\w/]+\.py)`", PAGE):
        assert (REPO / name).exists(), name
    for name in re.findall(r"`(\w+\.py)`", PAGE):
        assert name in SOURCES, name
    for name in SOURCES:
        assert f"`{name}`" in PAGE or name == "__init__.py", name
    for name in PROFILES:
        assert f"| `{name}` |" in PAGE
