"""Parameters of the token protocol: what is allowed, and errors that name the field."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from roundelay.core.engine import MS, NEVER
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.token.config import COLD, PREFORMED, REJOIN, TokenConfig
from roundelay.core.token.site import TokenSite


@pytest.mark.parametrize("sites", range(1, 12))
def test_resilience_is_at_most_what_a_majority_has_room_for(sites: int) -> None:
    most = (sites + 1) // 2 - 1 if sites != 2 else 1  # two: see `most_resilience`
    TokenConfig(resilience=most).check(sites)
    with pytest.raises(ConfigError, match="resilience") as caught:
        TokenConfig(resilience=most + 1).check(sites)
    assert caught.value.field == "resilience"
    assert caught.value.value == most + 1
    assert str(most) in caught.value.allowed
    assert f"{sites} sites" in caught.value.allowed
    # A majority has L + 1 members then, so that all of a majority list's commits are possible.
    assert sites // 2 + 1 >= most + 1


WRONG: list[tuple[str, Any]] = [
    ("resilience", -1),
    ("resilience", 0.5),
    ("resilience", "1"),
    ("kw", 0),
    ("kw", 1.5),
    ("kr", 0),
    ("kr", 5),
    ("hold_ns", 0),
    ("hold_ns", -5),
    ("resend_ns", 0),
    ("resend_jitter_ns", -1),
    ("resend_jitter_ns", 150 * MS),  # not below resend_ns
    ("pass_ns", 0),
    ("request_ns", 0),
    ("request_delay_ns", -1),
    ("retx_ns", 0),
    ("idle_ns", 0),
    ("idle_ns", NEVER + 1),
    ("attempts", -1),
    ("attempts", "8"),
    ("attempts_hard", 7),  # below attempts
    ("history", -1),
    ("own_limit", 0),
    ("qb_limit", 0),
    ("window", 0),
    ("request_burst", 0),
    ("recover_batch", 0),
    ("max_payload", 0),
    ("boot", "warm"),
]


@pytest.mark.parametrize("field, value", WRONG, ids=[f"{f}={v!r}" for f, v in WRONG])
def test_a_wrong_value_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        TokenConfig(**{field: value}).check(5)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} = {value} is not allowed: ")
    assert len(str(caught.value).splitlines()) == 1
    assert isinstance(caught.value, UsageError)


def test_the_number_of_sites_is_checked() -> None:
    with pytest.raises(ConfigError, match="sites = 0"):
        TokenConfig(resilience=0).check(0)
    with pytest.raises(ConfigError, match="sites = 65536"):
        TokenConfig().check(65536)


def test_only_one_of_the_two_transfer_rates_may_differ_from_one() -> None:
    TokenConfig(kw=4).check(5)
    TokenConfig(kr=4).check(5)
    with pytest.raises(ConfigError, match=r"kr = 2 .*kw = 3"):
        TokenConfig(kw=3, kr=2).check(5)


def test_kr_may_be_as_large_as_a_whole_rotation() -> None:
    for sites in (2, 3, 7):
        TokenConfig(kr=sites - 1, resilience=0).check(sites)
        with pytest.raises(ConfigError, match="kr"):
            TokenConfig(kr=sites, resilience=0).check(sites)
    TokenConfig(kr=1, resilience=0).check(1)


def test_a_passing_acknowledgement_is_repeated_later_than_the_hold_time() -> None:
    with pytest.raises(ConfigError, match=r"pass_ns = 50000000 .*hold_ns = 50000000"):
        TokenConfig(pass_ns=50 * MS).check(3)
    TokenConfig(pass_ns=50 * MS + 1).check(3)


def test_a_beacon_is_rarer_than_the_repetition_of_a_message() -> None:
    """It counts as progress, and would keep a source from ever repeating its message."""
    with pytest.raises(ConfigError, match=r"idle_ns = 200000000 .*resend_ns = 200000000"):
        TokenConfig(idle_ns=200 * MS, resend_ns=200 * MS).check(3)
    TokenConfig(idle_ns=200 * MS + 1, resend_ns=200 * MS).check(3)


@pytest.mark.parametrize("boot", [PREFORMED, COLD, REJOIN])
def test_the_ways_to_boot(boot: str) -> None:
    assert TokenConfig(boot=boot).check(3).boot == boot


def test_the_derived_timeouts_follow_from_r_and_t_retx() -> None:
    config = TokenConfig(attempts=8, retx_ns=10, idle_ns=100)
    assert config.silence_ns == 900
    assert config.slave_timeout_ns == 200
    assert config.token_timeout_ns == 280
    assert config.auth_timeout_ns == 320
    assert TokenConfig(idle_ns=NEVER).silence_ns == NEVER
    assert TokenConfig(attempts=0, retx_ns=10).auth_timeout_ns == 10


def test_commits_must_be_synced_only_where_no_other_copy_counts() -> None:
    assert TokenConfig(resilience=0).sync_commits
    assert not TokenConfig(resilience=1).sync_commits


def test_the_paper_profile_is_that_of_fig_6() -> None:
    config = TokenConfig.paper(1000 * MS, resilience=2).check(10)
    assert config.hold_ns == 1000 * MS
    assert config.pass_ns == 1020 * MS
    assert 1000 * MS < config.resend_ns <= config.pass_ns  # about t_tok: see docs/token.md
    assert 0 < config.resend_jitter_ns < config.request_ns
    assert config.request_ns == config.retx_ns == 20 * MS
    assert (config.request_delay_ns, config.idle_ns) == (0, NEVER)
    assert (config.batch, config.bundle, config.history) == (False, False, 0)
    assert config.attempts == config.attempts_hard > 10**15
    assert config.resilience == 2


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = TokenConfig()
    assert (config.resilience, config.kw, config.kr) == (1, 1, 1)
    assert (config.hold_ns, config.resend_ns, config.pass_ns) == (50 * MS, 150 * MS, 100 * MS)
    assert (config.request_ns, config.retx_ns, config.idle_ns) == (50 * MS, 50 * MS, 1000 * MS)
    assert (config.attempts, config.attempts_hard) == (8, 32)
    assert config.strict


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TokenConfig().kw = 2  # type: ignore[misc]


def test_a_site_checks_its_configuration_and_its_group() -> None:
    with pytest.raises(ConfigError, match="resilience"):
        TokenSite(0, (0, 1), TokenConfig(resilience=2), Random(0))
    with pytest.raises(ConfigError, match="me = 3"):
        TokenSite(3, (0, 1, 2), TokenConfig(), Random(0))
    with pytest.raises(ConfigError, match="group"):
        TokenSite(0, (0, 0, 1), TokenConfig(), Random(0))
