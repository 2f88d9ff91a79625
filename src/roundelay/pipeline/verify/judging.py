"""The verdict on one run: a proof that it is clean, or else what the checkers say about it."""

from __future__ import annotations

from roundelay.pipeline.verify.diagnosis import diagnose
from roundelay.pipeline.verify.per_source import prove_per_source
from roundelay.pipeline.verify.ranges import RANGE_MESSAGES
from roundelay.pipeline.verify.runs import TracedRun
from roundelay.pipeline.verify.survey import Survey, survey
from roundelay.pipeline.verify.tasks import Mapper
from roundelay.pipeline.verify.total_order import prove_total
from roundelay.pipeline.verify.verdict import NO_END, NO_ORDER, Figures, RunJudgement
from roundelay.trace.checkers.checkers import NONE, TOTAL


def prove(
    run: TracedRun, surveyed: Survey, mapper: Mapper, range_messages: int = RANGE_MESSAGES
) -> Figures | None:
    """How much there is in a run, if numpy proves all of it clean."""
    way = prove_total if run.order == TOTAL else prove_per_source
    return way(run, surveyed, mapper, range_messages)


def judge_fast(
    run: TracedRun, mapper: Mapper, range_messages: int = RANGE_MESSAGES
) -> RunJudgement:
    """The verdict on all but `holders`, which needs Spark."""
    surveyed = survey(run, mapper)
    proof = prove(run, surveyed, mapper, range_messages)
    return conclude(run, surveyed, mapper, proof, "fast")


def conclude(
    run: TracedRun, surveyed: Survey, mapper: Mapper, proof: Figures | None, strategy: str
) -> RunJudgement:
    """The verdict, with a proof or without."""
    control = surveyed.control
    judgement = RunJudgement.of(run, strategy, control.settled)
    if proof is not None:
        _count(judgement, surveyed, proof)
        return judgement
    diagnosis = diagnose(run, surveyed, mapper)
    _count(judgement, surveyed, diagnosis.figures)
    for name, verdict in judgement.invariants.items():
        kept = [finding for finding in diagnosis.findings if finding.invariant == name]
        verdict.add(kept, diagnosis.counts.get(name, 0))
    judgement.add(control.contradictions())
    return judgement


def _count(judgement: RunJudgement, surveyed: Survey, figures: Figures) -> None:
    """How much was looked at for each invariant, but for `holders`."""
    control, deliveries, positions = surveyed.control, figures.deliveries, figures.positions
    in_the_end, due = "I2", deliveries
    judgement.checked(deliveries, "I1", "I4")
    if judgement.order == TOTAL:
        views = len(control.views)
        judgement.checked(len(control.versions()), "lists")
        judgement.checked(views + positions if views else 0, "I3")
        due = positions * len(control.up)
    elif surveyed.addressed:
        in_the_end = "I8"
        judgement.checked(deliveries, "I8")
    if judgement.order == NONE:
        judgement.checked(0, "I1")
        judgement.note(NO_ORDER, "I1")
    if control.settled:
        judgement.checked(due, in_the_end)
        judgement.checked(figures.own, "I5")
    else:
        judgement.note(NO_END, "I2", "I5")
