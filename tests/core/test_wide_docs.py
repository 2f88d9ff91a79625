"""The page about the hierarchy says where everything is, and it is there."""

from __future__ import annotations

import re

import pytest

from roundelay.core.engine import MS
from roundelay.core.grsb.config import GrsbConfig
from roundelay.core.wide.config import WideConfig
from tests.core.pages import Page, cites

RULES = [f"HG-{k}" for k in range(1, 16)]
PAGE = Page("wide.md", "wide", ("core/test_wide*.py", "sim/test_wide*.py", "paper/test_wide*.py"))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    for place, text in PAGE.places_of(rule):
        assert cites(rule, text), f"{rule} is not cited in {place}"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_that_names_it(rule: str) -> None:
    assert PAGE.has_a_test_named(rule.lower().replace("-", "_"))


@pytest.mark.parametrize("k", range(1, 7))
def test_every_property_of_the_specification_has_a_test_that_names_it(k: int) -> None:
    assert PAGE.has_a_test_named(f"hg_t{k}")
    assert cites(f"HG-T{k}", PAGE.tests)


def test_every_parameter_is_listed_with_its_default() -> None:
    own = [
        name for name in WideConfig.__struct_fields__ if name not in GrsbConfig.__struct_fields__
    ]
    listed = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", PAGE.text, re.MULTILINE))
    for field in own:
        value = getattr(WideConfig(), field)
        shown = f"{value // MS} ms" if field.endswith("_ns") else value
        assert listed[field] == ({True: "yes", False: "no"}[value] if isinstance(value, bool)
                                 else str(shown)), field  # fmt: skip


def test_the_tests_and_modules_it_names_exist() -> None:
    assert PAGE.names_of_tests_and_modules_that_do_not_exist() == []
    for name in re.findall(r"`(\w+\.py)`", PAGE.text):
        assert name in PAGE.sources, name
    for name in PAGE.sources:
        assert f"`{name}`" in PAGE.text or name == "__init__.py", name


def test_every_deviation_of_the_code_is_on_the_page() -> None:
    block = PAGE.sources["site.py"].partition("Deviations from")[2].partition('"""')[0]
    table = PAGE.text.partition("## Deviations")[2].partition("## Simulating")[0]
    for rule in set(re.findall(r"^- ((?:HG-\d+/?)+)", block, re.MULTILINE)):
        for one in rule.split("/"):
            assert cites(one, table), one
