"""The page about AutoRM says where everything is, and it is there."""

from __future__ import annotations

import re

import pytest

from roundelay.core.autorm.config import AutoRmConfig
from tests.core.pages import Page, cites

RULES = [f"AR-{k}" for k in range(1, 16)]
PAGE = Page(
    "autorm.md",
    "autorm",
    ("core/test_autorm*.py", "sim/test_autorm*.py", "wire/test_beamon.py", "paper/test_autorm*.py"),
)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_cited_in_the_code_and_listed_with_its_place(rule: str) -> None:
    places = PAGE.places_of(rule)
    assert any(cites(rule, text) for _, text in places), f"{rule} is not cited there"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test_that_names_it(rule: str) -> None:
    assert PAGE.has_a_test_named(rule.lower().replace("-", "_"))


@pytest.mark.parametrize("k", range(1, 11))
def test_every_property_of_the_specification_has_a_test_that_names_it(k: int) -> None:
    assert PAGE.has_a_test_named(f"ar_t{k}")
    assert cites(f"AR-T{k}", PAGE.tests)


def test_every_parameter_is_listed_with_its_default() -> None:
    PAGE.has_every_default_of(AutoRmConfig)


def test_the_tests_it_names_exist() -> None:
    assert PAGE.names_of_tests_and_modules_that_do_not_exist() == []


def test_its_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.text, flags=re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    assert found["messages"] == [b"good morning"]
    assert found["when"] == found["node"].deadline  # type: ignore[attr-defined]
