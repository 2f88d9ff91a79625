"""The page about the cluster protocols says where everything is, and it is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import MS
from tests.core.cluster_net import ENGINES

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "cluster.md").read_text(encoding="utf-8")
SOURCES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (REPO / "src" / "roundelay" / "core" / "cluster").glob("*.py")
}
CORE_TESTS = " ".join(
    path.read_text(encoding="utf-8") for path in (REPO / "tests" / "core").glob("test_cluster_*.py")
)
PAPER_TESTS = " ".join(
    (REPO / "tests" / "paper" / name).read_text(encoding="utf-8")
    for name in ("test_to_po_claims.py", "test_spo_claims.py")
)
SPO_RULES = ("S1", "S2", "A1", "A2", "A3", "A4", "L1", "L2", "X", "P", "K", "O")
RULES = [
    *(f"TR-{k}" for k in range(1, 17)),
    *(f"TO-{k}" for k in range(1, 6)),
    *(f"TO-R{k}" for k in range(1, 6)),
    *(f"PO-{k}" for k in range(1, 9)),
    *(f"SPO-{name}" for name in SPO_RULES),
]
TEST_IDS = [
    *(f"TO-T{k}" for k in range(1, 8)),
    *(f"PO-T{k}" for k in range(1, 7)),
    *(f"SPO-T{k}" for k in range(1, 10)),
]
ERRATA = (19, 22, 26, 27, 28, 29, 30, 31, 64)


@cache
def definitions(name: str) -> dict[str, list[str]]:
    """The functions and classes of a module, with their source."""
    source = SOURCES[name]
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(ast.get_source_segment(source, node) or "")
    return found


def cites(text: str, rule: str) -> bool:
    """The full id, or a range such as PO-3…PO-5 or SPO-A1…A4 that it lies in."""
    if re.search(rf"(?<![A-Z-]){rule}(?!\d)", text):
        return True
    stem, last = re.fullmatch(r"(.*?)(\d*)", rule).groups()  # type: ignore[union-attr]
    for lo, hi in re.findall(rf"(?<![A-Z-]){stem}(\d+)…(?:{stem}|[A-Z])(\d+)", text):
        if last and int(lo) <= int(last) <= int(hi):
            return True
    return False


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    assert any(re.search(rf"(?<![A-Z-]){rule}(?!\d)", text) for text in SOURCES.values())
    (line,) = re.findall(rf"^\| {rule} \| .*$", PAGE, flags=re.MULTILINE)
    places = re.findall(r"`(\w+\.py):(\w+)`", line)
    assert places
    for name, definition in places:
        assert definition in definitions(name), f"{name} has no {definition}"
        cited = any(cites(source, rule) for source in definitions(name)[definition])
        assert cited, f"{name}:{definition} does not cite {rule}"


@pytest.mark.parametrize("rule", [*RULES, *TEST_IDS])
def test_every_rule_and_every_test_id_has_a_test_that_names_it(rule: str) -> None:
    name = rule.lower().replace("-", "_")
    assert re.search(rf"def test_(\w+_)?(?<![a-z]){name}_", CORE_TESTS), f"no test_{name}_…"


@pytest.mark.parametrize("number", ERRATA)
def test_every_erratum_that_was_found_in_test_has_a_test_that_takes_the_fix_back(
    number: int,
) -> None:
    assert re.search(rf"def test_e_{number}_", CORE_TESTS)
    assert re.search(rf"^\| (\d+, )*{number}(, \d+)* \| .*`test_e_{number}_…`", PAGE, re.MULTILINE)


def test_no_rule_is_cited_that_does_not_exist() -> None:
    pattern = r"(?<![A-Z-])(?:TR-\d+|PO-\d+|TO-R?\d+|SPO-[A-Z]\d?)"
    cited = {rule for text in SOURCES.values() for rule in re.findall(pattern, text)}
    assert cited <= set(RULES)


def test_every_parameter_is_listed_with_its_default() -> None:
    listed = {
        field: default.strip().strip("`")
        for field, default in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", PAGE, re.MULTILINE)
        if field in ClusterConfig.__struct_fields__
    }
    assert listed.keys() == set(ClusterConfig.__struct_fields__)
    for field, shown in listed.items():
        value = getattr(ClusterConfig(), field)
        if isinstance(value, bool):
            assert shown == ("yes" if value else "no"), field
        elif field.endswith("_ns"):
            number, unit = shown.split()
            assert (unit, value) == ("ms", int(number) * MS), field
        else:
            assert shown == str(value), field


def test_every_engine_has_its_line() -> None:
    for kind in ENGINES.values():
        module = kind.__module__.rpartition(".")[2]
        assert re.search(rf"^\| `{kind.__name__}` \| `{module}\.py` \|", PAGE, re.MULTILINE)


def test_no_module_of_an_engine_has_300_lines() -> None:
    for kind in ENGINES.values():
        module = kind.__module__.rpartition(".")[2]
        assert len(SOURCES[f"{module}.py"].splitlines()) < 300, module


def test_the_tests_it_names_exist() -> None:
    for name in re.findall(r"`(test_\w+)…?`", PAGE):
        assert f"def {name}" in CORE_TESTS + PAPER_TESTS, name
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (REPO / path).exists(), path


def test_every_claim_of_the_papers_names_its_section() -> None:
    """Each test ends with a comment."""
    for name in ("test_to_po_claims.py", "test_spo_claims.py"):
        source = (REPO / "tests" / "paper" / name).read_text(encoding="utf-8")
        parts = re.split(r"^(?=def |class |@pytest)", source, flags=re.MULTILINE)
        for part in parts:
            if part.startswith("def test_"):
                body = re.split(r"^# -- ", part, flags=re.MULTILINE)[0]
                last = body.strip().splitlines()[-1].strip()
                assert re.match(r"# (§\d|not in the paper)", last), part.splitlines()[0]
