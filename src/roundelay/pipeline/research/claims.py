"""What the papers claim of a point, how near a simulation has to come, and where it differs.

`model` is a value of an analytic model, `tolerance` the deviation that PROTOCOLS §9 allows, `parts`
takes the token protocol's count apart: each kind of PDU has a term of its own in CM84's appendix,

    X_p = n_b  +  n_a·Y_a  +  n_c·Y_c  +  (n_rb + n_ra·Y_a)·n_r
          broadcasts  acks    confirms    repairs (requests and their answers)

so the difference of the sums is the sum of four differences, and the largest says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any, Final

from roundelay.core import cost
from roundelay.core.cluster.config import EAGER
from roundelay.core.families import CLUSTERS, POSITIVE_ACK, SPO, TOKEN
from roundelay.runs.measured import FAST, ISOLATED, POISSON, SATURATED
from roundelay.runs.simulate import SimulateParams

PDUS: Final = "pdus_per_message"
CONTROL: Final = "control_per_message"
BROADCASTS: Final = "broadcasts_per_message"
ACKS: Final = "acks_per_message"
CONFIRMS: Final = "confirms_per_message"
REPAIRS: Final = "repairs_per_message"
STORAGE: Final = "storage_max"
ROUNDS: Final = "rounds"
SLOTS: Final = "slots"

PARTS: Final = (BROADCASTS, ACKS, CONFIRMS, REPAIRS)
DELAYS: Final = ("delay_ms_mean", "delay_ms_p99")
MEASURES: Final = (PDUS, CONTROL, *PARTS, STORAGE, *DELAYS, ROUNDS, SLOTS)
"""What a run is measured by, in the order of a summary."""

KINDS_OF_PART: Final = {
    "B": BROADCASTS,
    "PA_B": BROADCASTS,
    "ACK": ACKS,
    "PA_ACK": ACKS,
    "CONFIRM": CONFIRMS,
}


def parts(protocol: str, pdus_by_kind: Mapping[str, int], messages: int) -> dict[str, float | None]:
    """PDUs per message by what they are for; None for protocols that CM84 does not analyse.

    >>> parts("token", {"B": 10, "ACK": 12, "RETX_REQ": 3, "RETX_MSG": 2}, 10)[REPAIRS]
    0.5
    """
    if protocol not in (TOKEN, POSITIVE_ACK) or not messages:
        return dict.fromkeys(PARTS)
    counts = dict.fromkeys(PARTS, 0)
    for kind, count in pdus_by_kind.items():
        counts[KINDS_OF_PART.get(kind, REPAIRS)] += count
    return {name: count / messages for name, count in counts.items()}


# -- models ------------------------------------------------------------------------------------


_PLACE: Final = ("protocol", "sites", "resilience", "tau", "loss", "profile")
SETTING: Final = (*_PLACE, "load", "policy", "destinations", "kw", "kr")
"""What the models depend on: the columns of a run or of a summary that say where it is."""


def setting_of(row: Mapping[str, Any]) -> SimulateParams:
    return SimulateParams(**{name: row[name] for name in SETTING})


def model(setting: SimulateParams, measure: str) -> float | None:
    """What the paper's analysis says, or None where it says nothing."""
    if setting.profile == FAST:
        return None
    if setting.protocol == TOKEN:
        return _token(setting, measure)
    if setting.protocol == POSITIVE_ACK:
        total = cost.x_b_positive_ack(setting.sites, setting.loss)
        return {PDUS: total, CONTROL: total - 1}.get(measure)
    if setting.protocol in CLUSTERS and setting.load == ISOLATED and not setting.loss:
        return _cluster(setting, measure)
    return None


def _idle(setting: SimulateParams) -> float:
    """P_q̄: the chance that a token site waits T in vain."""
    if setting.load == POISSON:
        assert setting.tau is not None
        return exp(-setting.tau)
    return 1.0 if setting.load == ISOLATED else 0.0


def _token(setting: SimulateParams, measure: str) -> float | None:
    sites, loss, kw, kr = setting.sites, setting.loss, setting.kw, setting.kr
    level = setting.resilience or 0
    if measure == STORAGE:
        return float(cost.storage_messages(sites, kw, kr))
    idle = _idle(setting)
    ya = cost.acks_and_nulls(level, idle, kw, kr)
    yc = cost.confirmations(level, idle, kw, kr)
    terms = {
        BROADCASTS: 1.0,
        ACKS: cost.n_a(loss) * ya,
        CONFIRMS: cost.n_a(loss) * yc,
        REPAIRS: (cost.n_rb(sites, loss) + cost.n_ra(sites, loss) * ya) * cost.n_r(loss),
    }
    total = sum(terms.values())
    return {PDUS: total, CONTROL: total - 1, **terms}.get(measure)


def _cluster(setting: SimulateParams, measure: str) -> float | None:
    n = setting.sites
    if setting.destinations is not None and setting.destinations < n:
        pdus = 2 * (setting.destinations + 1)
    elif setting.policy == EAGER:
        pdus = n * n - n + 1
    elif n == 2 and setting.protocol != SPO:
        pdus = 3
    else:
        pdus = 2 * n
    return {PDUS: float(pdus), CONTROL: pdus - 1.0, SLOTS: float(pdus), ROUNDS: 3.0}.get(measure)


def deviation(mean: float | None, predicted: float | None) -> float | None:
    """How far off, as a share of the model."""
    if mean is None or predicted is None:
        return None
    if not predicted:
        return None if mean else 0.0
    return mean / predicted - 1


# -- tolerances --------------------------------------------------------------------------------

EXACT: Final = 1e-9
BEYOND: Final = 0.2
"""The figure ends here; nothing is claimed of higher losses."""


def tolerance(setting: SimulateParams, measure: str) -> tuple[float, float] | None:
    """The deviations that are allowed (PROTOCOLS §9.2–9.5), or None where nothing is claimed."""
    if model(setting, measure) is None:
        return None
    if setting.protocol in CLUSTERS:
        return -EXACT, EXACT
    if measure == STORAGE:
        # Reached when all are busy; never exceeded, whatever is lost.
        reached = setting.load == SATURATED and not setting.loss
        return (-EXACT if reached else -1.0), EXACT
    if measure not in (PDUS, CONTROL):
        return None
    if setting.protocol == POSITIVE_ACK or not setting.loss:
        return -0.02, 0.02
    if measure == CONTROL or setting.load != POISSON or setting.loss > BEYOND:
        return None
    if setting.loss <= 0.1:
        return -0.15, 0.25
    assert setting.tau is not None
    if setting.sites >= 30 and setting.tau >= 10:
        return -0.29, 0.22  # acknowledgements queue up, which the model ignores
    return -0.22, 0.22


WHY: Final[dict[tuple[str, bool], str]] = {
    (BROADCASTS, True): "a source repeats what the token site missed or has queued; the model "
    "counts a broadcast once (n_b = 1)",
    (ACKS, True): "an acknowledgement is repeated, too, when the sign that it was taken is lost; "
    "the model repeats it until it is taken (n_a)",
    (ACKS, False): "messages queue behind a lost transfer, and behind one that waits no NULL is "
    "needed",
    (CONFIRMS, True): "a repeated transfer ends in a confirmation of its own",
    (CONFIRMS, False): "messages queue behind a lost transfer, so fewer waits for T are in vain",
    (REPAIRS, True): "the site that passes the token and the one that takes it may both answer a "
    "request, and repeated broadcasts are answered, too; the model has one answer",
    (REPAIRS, False): "what is repeated reaches everybody, and repairs what the model has each "
    "site ask for",
}
"""Why a term of X_p is larger (True) or smaller than the model has it."""

SMALL: Final = 0.02
"""Deviations up to this share need no explanation."""


def explain(off: float | None, point: Mapping[str, Mapping[str, Any]]) -> str:
    """Where a count of the token protocol differs from X_p: its terms, the largest first.

    `point` has the row of each measure.
    """
    rows = [point[part] for part in PARTS if part in point and point[part]["model"] is not None]
    if off is None or abs(off) <= SMALL or not rows:
        return ""
    terms = [(row["mean"] - row["model"], row["measure"]) for row in rows]
    terms.sort(key=lambda term: -abs(term[0]))
    listed = ", ".join(f"{part.split('_')[0]} {more:+.2f}" for more, part in terms)
    same = [term for term in terms if (term[0] > 0) == (off > 0)]
    more, part = (same or terms)[0]
    return f"{listed}: {WHY.get((part, more > 0), '')}".rstrip(": ")
