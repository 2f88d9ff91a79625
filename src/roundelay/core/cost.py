"""What a broadcast costs: CM84's analytic model (§6.1, Table I, appendix).

Messages arrive at random (Poisson, rate λ) and are acknowledged as soon as they arrive; each site
loses a transmission with probability P_e, independently.  τ = T·λ is the token's hold time counted
in mean inter-arrival times, so P_q̄ = e^(−τ) is the chance that a token site waits T in vain.

    X_p = n_b + n_rb·n_r + (n_a + n_ra·n_r)·Y_a + n_c·Y_c       token protocol
    X_b = 1 + n_a1 + n_rq·n_r                                   positive acknowledgement

both in transmitted PDUs per broadcast, where a multicast counts once.  The subscripts are the
paper's and read the wrong way round, hence the longer names here.

Where we go on from the paper
  - L = 0 is counted as L = 1: some site has to acknowledge.  A message of an L = 0 group passes the
    token once, too, if K_w = 1.
  - The paper writes n_rq for the requests per loss and for the sites that need copies; they are
    `n_requests` and `n_rq_sites`.
  - Transfer rates other than one: `acks_and_nulls` and `confirmations` follow the token through
    what holders do.  A wait for T ends with a message (chance 1 − q) or in vain (q = P_q̄).

    K_r > 1: a data acknowledgement and K_r − 1 NULLs go out at once, then the holder waits.  Only
    max(L, K_r) − K_r further transfers may cost a wait; so the formulas of K_r = 1 hold with
    L′ = max(L, K_r) − K_r + 1, plus the K_r − 1 NULLs.

    K_w > 1: a holder is at place i = 1 … K_w of its turn.  The next message finds it there with
    chance 1 − q, else a NULL moves the token and the turn is over; so place i is reached with
    weight (1 − q)^(i−1), and `last_place` is the share of acknowledgements that end a full turn.
    All others need one NULL more in an idle group: L + 2 control messages instead of L + 1.

  - Commit delay: time from the acknowledgement to the L-th accepted transfer.  Each wait takes
    min(T, time to the next message), (1 − q)/λ on average, whatever ends it; by Wald's identity the
    mean delay is the mean number of waits times that.  Transit times and losses are left out.
"""

# ruff: noqa: N803, N806 - N and L are the paper's letters

from __future__ import annotations

from math import exp, expm1, log
from typing import Final

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.limits import UNLIMITED, chance, whole

SITES_MAX: Final = 65535
NUMBER_MAX: Final = 1e12

# ------------------------------------------------------------------------ the paper's formulas


def y_a(L: int, tau: float) -> float:
    """Y_a: acknowledgements and NULL passes per broadcast.

    >>> round(y_a(2, 0.1), 4), y_a(2, 0.0)
    (1.9048, 2.0)
    """
    L = max(L, 1)
    # expm1 keeps the digits that 1 − e^(−τ) loses for small τ.
    return expm1(-L * tau) / expm1(-tau) if tau > 0.0 else float(L)


def y_c(L: int, tau: float) -> float:
    """Y_c: confirmations per broadcast."""
    return exp(-max(L, 1) * tau)


def n_rb(N: int, loss: float) -> float:
    """Sites that must request the broadcast; one in N is acknowledged by its own source."""
    return (N - 1 - (N - 1) / N) * loss


def n_a(loss: float) -> float:
    """Transmissions of an acknowledgement until the next token site has it; also n_c, n_rx."""
    return 1 / (1 - loss)


def n_ra(N: int, loss: float) -> float:
    """Sites that must request the acknowledgement: they missed it when the next site got it."""
    return (N - 2) * loss / (1 + loss)


def n_requests(loss: float) -> float:
    """Transmissions of a request until its answer has come (the paper's first n_rq)."""
    return 1 / (1 - loss) ** 2


def n_r(loss: float) -> float:
    """Requests and answers per repaired loss."""
    return n_requests(loss) + n_a(loss)


def n_rq_sites(N: int, loss: float) -> float:
    """Positive acknowledgement: sites that need copies of their own (the paper's second n_rq)."""
    return (N - 1) * (1 - (1 - loss) ** 2)


def x_p_token(N: int, L: int, tau: float, loss: float, kw: int = 1, kr: int = 1) -> float:
    """X_p: PDUs per broadcast of the token protocol.

    >>> round(x_p_token(10, 1, 0.1, 0.05), 3)
    4.703
    """
    if kw == kr == 1:
        ya, yc = y_a(L, tau), y_c(L, tau)
    else:
        q = exp(-tau)
        ya, yc = acks_and_nulls(L, q, kw, kr), confirmations(L, q, kw, kr)
    repair = n_r(loss)
    return 1 + n_rb(N, loss) * repair + (n_a(loss) + n_ra(N, loss) * repair) * ya + n_a(loss) * yc


def x_b_positive_ack(N: int, loss: float) -> float:
    """X_b: PDUs per broadcast where every receiver acknowledges.

    >>> round(x_b_positive_ack(10, 0.05), 3)
    11.446
    """
    return 1 + (N - 1) * (1 - loss) + n_rq_sites(N, loss) * n_r(loss)


# ------------------------------------------------------------------------ transfer rates, Table I


def _geometric(ratio: float, terms: int) -> float:
    """1 + ratio + ratio² + …, so many terms, for 0 ≤ ratio ≤ 1."""
    if ratio >= 1.0:
        return float(terms)
    if ratio <= 0.0:
        return 1.0 if terms > 0 else 0.0
    return -expm1(terms * log(ratio)) / (1 - ratio)


def last_place(p_idle: float, kw: int) -> float:
    """Share of data acknowledgements that are the K_w-th of their holder's turn."""
    busy = 1 - p_idle
    return busy ** (kw - 1) / _geometric(busy, kw)


def acks_and_nulls(L: int, p_idle: float, kw: int = 1, kr: int = 1) -> float:
    """Acknowledgements and NULLs per broadcast without loss, given P_q̄ = `p_idle`."""
    if kw > 1:
        if L == 0:
            return 1.0  # committed at once: nothing makes an idle holder pass the token
        return _geometric(p_idle, L) + (1 - last_place(p_idle, kw)) * p_idle**L
    return kr - 1 + _geometric(p_idle, max(L, kr, 1) - kr + 1)


def confirmations(L: int, p_idle: float, kw: int = 1, kr: int = 1) -> float:
    """Confirmations per broadcast without loss, given P_q̄ = `p_idle`."""
    if kw > 1:
        if L == 0:
            return p_idle / kw
        share = last_place(p_idle, kw)
        return p_idle**L * (share + (1 - share) * p_idle)
    return float(p_idle ** (max(L, kr, 1) - kr + 1))


def control_messages(L: int, p_idle: float, kw: int = 1, kr: int = 1) -> float:
    """Table I: control messages per broadcast without loss.

    >>> [control_messages(1, idle) for idle in (0.0, 1.0)]      # busy, idle: 1 + P_q̄
    [1.0, 2.0]
    >>> [control_messages(1, idle, kr=4) for idle in (0.0, 1.0)]      # K_r + P_q̄
    [4.0, 5.0]
    """
    return acks_and_nulls(L, p_idle, kw, kr) + confirmations(L, p_idle, kw, kr)


def storage_messages(N: int, kw: int = 1, kr: int = 1) -> int:
    """Table I: messages a site keeps to answer requests of list members.

    >>> storage_messages(10), storage_messages(10, kw=4), storage_messages(10, kr=2)
    (9, 36, 5)
    """
    return kw * (N - 1) if kw > 1 else -(-(N - 1) // kr)  # rounded up


# ------------------------------------------------------------------------ commit delay


def waits_mean(L: int, p_idle: float, kw: int = 1, kr: int = 1) -> float:
    """Mean number of waits between an acknowledgement and its L-th accepted transfer."""
    if L == 0:
        return 0.0
    busy = 1 - p_idle
    if kw > 1:
        # A fresh holder needs 1 + (1−q) + (1−q)² + … waits, K_w terms at most, to pass the token.
        per_turn = _geometric(busy, kw)
        # The own turn: what is left of it, averaged over the places.  The closed form loses its
        # digits for tiny q, where the average is that of 0 … K_w − 1.
        if p_idle * kw < 1e-6:
            own_turn = (kw - 1) / 2
        else:
            own_turn = (1 - kw * last_place(p_idle, kw)) / p_idle
        return own_turn + (L - 1) * per_turn
    # A message brings K_r transfers at once, a wait in vain one.
    waits = [0.0]
    for needed in range(1, L - kr + 1):
        waits.append(1 + p_idle * waits[needed - 1] + busy * waits[max(needed - kr, 0)])
    return waits[-1]


def waits_bound(L: int, kw: int = 1, kr: int = 1) -> int:
    """The most waits there can be: L − 1 for K_w = K_r = 1, as in the paper."""
    if L == 0:
        return 0
    return kw * L - 1 if kw > 1 else max(0, L - kr)


def commit_delay_mean(L: int, tau: float, hold: float, kw: int = 1, kr: int = 1) -> float:
    """Mean delay from acknowledgement to commit, in the unit of `hold` (T)."""
    wait = -expm1(-tau) / tau * hold if tau > 0.0 else hold
    return waits_mean(L, exp(-tau), kw, kr) * wait


def commit_delay_bound(L: int, hold: float, kw: int = 1, kr: int = 1) -> float:
    """Longest delay from acknowledgement to commit, in the unit of `hold`: T(L − 1)."""
    return float(waits_bound(L, kw, kr) * hold)


# ------------------------------------------------------------------------ a plan


class Prediction(Struct, frozen=True, kw_only=True):
    """The token protocol with one L.  Counts are PDUs per broadcast."""

    resilience: int
    messages: float
    """All PDUs: 1 broadcast + acks_and_nulls + confirmations + retransmissions."""
    acks_and_nulls: float
    confirmations: float
    retransmissions: float
    """What loss adds: repeated acknowledgements and confirmations, requests and answers."""
    commit_delay_mean_ms: float
    commit_delay_bound_ms: float
    storage_messages: int
    pdus_per_s: float


class CostPlan(Struct, frozen=True, kw_only=True):
    """What to expect of a group, beside its neighbours with one resilience less and more."""

    sites: int
    resilience: int
    loss: float
    rate: float
    """Broadcasts per second, of all sources together."""
    hold_ms: float
    kw: int
    kr: int
    tau: float
    token: Prediction
    nearby: tuple[Prediction, ...]
    positive_ack_messages: float
    positive_ack_pdus_per_s: float


def plan(
    sites: int, resilience: int, loss: float, rate: float, hold_ms: float, kw: int = 1, kr: int = 1
) -> CostPlan:
    """Predict the cost of a group; raises ConfigError for what cannot be."""
    whole("sites", sites, 2, SITES_MAX)
    resilience_max = (sites + 1) // 2 - 1
    whole("resilience", resilience, 0, resilience_max, f" for {sites} sites")
    chance("loss", loss)
    _positive("rate", rate)
    _positive("hold_ms", hold_ms)
    whole("kw", kw, 1, UNLIMITED)
    whole("kr", kr, 1, sites - 1, f" for {sites} sites")
    if kw > 1 and kr > 1:
        raise ConfigError("kr", kr, f"1 when kw is above 1 (kw = {kw})")

    def predict(level: int) -> Prediction:
        ya, yc = acks_and_nulls(level, exp(-tau), kw, kr), confirmations(level, exp(-tau), kw, kr)
        messages = x_p_token(sites, level, tau, loss, kw, kr)
        return Prediction(
            resilience=level,
            messages=messages,
            acks_and_nulls=ya,
            confirmations=yc,
            retransmissions=max(0.0, messages - 1 - ya - yc),
            commit_delay_mean_ms=commit_delay_mean(level, tau, hold_ms, kw, kr),
            commit_delay_bound_ms=commit_delay_bound(level, hold_ms, kw, kr),
            storage_messages=storage_messages(sites, kw, kr),
            pdus_per_s=messages * rate,
        )

    tau = rate * hold_ms / 1000
    nearby = [level for level in (resilience - 1, resilience + 1) if 0 <= level <= resilience_max]
    positive_ack = x_b_positive_ack(sites, loss)
    return CostPlan(
        sites=sites,
        resilience=resilience,
        loss=loss,
        rate=rate,
        hold_ms=hold_ms,
        kw=kw,
        kr=kr,
        tau=tau,
        token=predict(resilience),
        nearby=tuple(predict(level) for level in nearby),
        positive_ack_messages=positive_ack,
        positive_ack_pdus_per_s=positive_ack * rate,
    )


def _positive(field: str, value: object) -> None:
    # The bound keeps every product finite; NaN fails any comparison.
    if not (isinstance(value, (int, float)) and 0 < value <= NUMBER_MAX):
        raise ConfigError(field, value, f"a number above 0, at most {NUMBER_MAX:g}")
