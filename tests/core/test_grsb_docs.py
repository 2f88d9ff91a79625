"""The page about GRSB says where everything is, and it is there."""

from __future__ import annotations

import re

import pytest

from roundelay.core.grsb.config import PROFILES, GrsbConfig
from tests.core.pages import Page, cites

RULES = [f"GR-{k}" for k in range(1, 29)]
PAGE = Page(
    "grsb.md",
    "grsb",
    (
        "core/test_grsb*.py",
        "sim/test_grsb*.py",
        "paper/test_grsb*.py",
        "node/test_grsb*.py",
    ),
)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    for place, text in PAGE.places_of(rule):
        assert cites(rule, text), f"{rule} is not cited in {place}"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_that_names_it(rule: str) -> None:
    assert PAGE.has_a_test_named(rule.lower().replace("-", "_"))


@pytest.mark.parametrize("k", [k for k in range(1, 13) if k != 11])
def test_every_property_of_the_specification_has_a_test_that_names_it(k: int) -> None:
    # GR-T11 is the Security Controller's.
    assert PAGE.has_a_test_named(f"gr_t{k}")
    assert cites(f"GR-T{k}", PAGE.tests)


def test_every_parameter_is_listed_with_its_default() -> None:
    PAGE.has_every_default_of(GrsbConfig)


def test_the_tests_modules_and_profiles_it_names_exist() -> None:
    assert PAGE.names_of_tests_and_modules_that_do_not_exist() == []
    for name in re.findall(r"`(\w+\.py)`", PAGE.text):
        assert name in PAGE.sources, name
    for name in PAGE.sources:
        assert f"`{name}`" in PAGE.text or name == "__init__.py", name
    for name in PROFILES:
        assert f"| `{name}` |" in PAGE.text
