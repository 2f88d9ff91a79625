"""What cannot be given to an application, as a frontend hears of it (MISS)."""

from __future__ import annotations

from roundelay.core.errors import MalformedPdu
from roundelay.node.node_api import Missed
from roundelay.wire.frontend import BAD_BODY, Packet, json_packet, read_json


def miss_packet(missed: Missed) -> bytes:
    """MISS: a JSON object; `was`, `final` and `epoch` only where they say something."""
    said: dict[str, object] = {"lo": missed.lo, "hi": missed.hi, "history": missed.history}
    if missed.was:
        said["was"] = missed.was
    if missed.final:
        said["final"] = True
    if missed.epoch >= 0:
        said["epoch"] = missed.epoch
    return json_packet("MISS", missed.group, said)


def read_missed(found: Packet) -> Missed:
    said = read_json(found)
    lo, hi = said.get("lo"), said.get("hi")
    if type(lo) is not int or type(hi) is not int:
        raise MalformedPdu(BAD_BODY, "MISS without positions")
    history, was = str(said.get("history", "")), str(said.get("was", ""))
    epoch = said.get("epoch", -1)
    if type(epoch) is not int:
        raise MalformedPdu(BAD_BODY, "MISS with an epoch that is no number")
    return Missed(found.group, lo, hi, history, was, said.get("final") is True, epoch)
