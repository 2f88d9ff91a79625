"""The page about the token protocol says where everything is, and it is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from roundelay.core.engine import MS
from roundelay.core.token import phases
from roundelay.core.token.config import TokenConfig

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "token.md").read_text(encoding="utf-8")
SOURCES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (REPO / "src" / "roundelay" / "core" / "token").glob("*.py")
}
RULES = [f"CM-N{k}" for k in range(1, 22)] + [f"CM-R{k}" for k in range(1, 19) if k not in (6, 7)]
TESTS = " ".join(
    path.read_text(encoding="utf-8") for path in (REPO / "tests" / "core").glob("test_token_*.py")
)


@cache
def functions(name: str) -> dict[str, str]:
    """The functions of a module with their source."""
    source = SOURCES[name]
    return {
        node.name: ast.get_source_segment(source, node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }


def cites(text: str, rule: str) -> bool:
    return re.search(rf"{rule}(?!\d)", text) is not None


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    assert any(cites(text, rule) for text in SOURCES.values())
    (line,) = re.findall(rf"^\| {rule} \| .*$", PAGE, flags=re.MULTILINE)
    places = re.findall(r"`(\w+\.py):(\w+)`", line)
    assert places
    for name, function in places:
        assert function in functions(name), f"{name} has no {function}"
        assert cites(functions(name)[function], rule), f"{name}:{function} does not cite {rule}"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_that_names_it(rule: str) -> None:
    name = rule.lower().replace("-", "_")
    assert re.search(rf"def test_{name}_", TESTS), f"no test_{name}_…"


def test_no_rule_is_cited_that_does_not_exist() -> None:
    cited = {rule for text in SOURCES.values() for rule in re.findall(r"CM-[NR]\d+", text)}
    assert cited - set(RULES) <= {"CM-R6", "CM-R7"}  # named as not in use


def test_every_parameter_is_listed_with_its_default() -> None:
    listed = {
        field: default
        for field, default in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
        if field in TokenConfig.__struct_fields__
    }
    assert listed.keys() == set(TokenConfig.__struct_fields__)
    for field, default in listed.items():
        value = getattr(TokenConfig(), field)
        shown = default.strip().strip("`")
        if isinstance(value, bool):
            assert shown == ("yes" if value else "no"), field
        elif field.endswith("_ns") and value:
            number, unit = shown.split()
            assert value == int(number) * {"ms": MS, "s": 1000 * MS}[unit], field
        else:
            assert shown == str(value), field


def test_every_phase_has_its_line() -> None:
    for phase in ("NORMAL", "OUT", "O1", "O2", "S1", "S2", "W3"):
        assert getattr(phases, phase) == phase
        assert re.search(rf"^\| {phase} \| ", PAGE, re.MULTILINE)


def test_the_diagram_of_the_phases_is_drawn_from_their_table() -> None:
    lines = ["stateDiagram-v2"]
    for source, targets in phases.TRANSITIONS.items():
        for target, cause in targets.items():
            shown = "[*]" if source == phases.START else source
            lines.append(f"    {shown} --> {target}: {cause}")
    assert "\n".join(["```mermaid", *lines, "```"]) in PAGE


def test_the_phase_changes_in_one_place() -> None:
    assigned = [name for name, text in SOURCES.items() if re.search(r"\.phase(: str)? = ", text)]
    assert assigned == ["site.py"]
    assert len(re.findall(r"\.phase(?:: str)? = ", SOURCES["site.py"])) == 2  # START, `become`


def test_the_tests_it_names_exist() -> None:
    everything = TESTS + " ".join(
        path.read_text(encoding="utf-8") for path in (REPO / "tests" / "paper").glob("test_*.py")
    )
    for name in re.findall(r"`(test_\w+)…?`", PAGE):
        if not (REPO / "tests" / "core" / f"{name}.py").exists():
            assert f"def {name}" in everything, name
    for name in re.findall(r"`(\w+\.txt)`", PAGE):
        assert (REPO / "tests" / "scenarios" / name).exists(), name
