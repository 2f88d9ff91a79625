"""Sealed datagrams: who has no key can neither read nor write, and nothing counts twice."""

from __future__ import annotations

import os
import random
import tracemalloc

import pytest

from roundelay.core.errors import MalformedPdu
from roundelay.wire import seal as seal_module
from roundelay.wire.seal import HEAD, OVERHEAD, REPLAY_WINDOW, SEALED, Seal

SECRET = bytes(range(32))


def pair(secret: bytes = SECRET) -> tuple[Seal, Seal]:
    return Seal(SECRET, os.urandom(16)), Seal(secret, os.urandom(16))


def refusal(receiver: Seal, data: bytes) -> str:
    with pytest.raises(MalformedPdu) as caught:
        receiver.open(data)
    return caught.value.reason


@pytest.mark.parametrize("size", [0, 1, 64, 1024, 1200, 8192, 65_000])
def test_what_was_sealed_comes_out_again(size: int) -> None:
    sender, receiver = pair()
    data = os.urandom(size)
    sealed = sender.seal(data)
    assert len(sealed) == size + OVERHEAD
    assert sealed[0] == SEALED
    if size > 16:
        assert data not in sealed
    assert receiver.open(sealed) == data


@pytest.mark.parametrize("size", [0, 20, 2000])
def test_a_changed_byte_anywhere_is_noticed_and_changes_nothing(size: int) -> None:
    sender, receiver = pair()
    sealed = sender.seal(bytes(size))
    step = 1 if size < 100 else 37
    for at in (*range(HEAD.size), *range(HEAD.size, len(sealed), step), len(sealed) - 1):
        for bit in (1, 128):
            changed = bytearray(sealed)
            changed[at] ^= bit
            assert refusal(receiver, bytes(changed)) in (
                "seal", "not sealed", "format version", "key epoch",
            )  # fmt: skip
    assert receiver.open(sealed) == bytes(size)  # its number was not used up


def test_a_truncated_or_longer_datagram_is_refused() -> None:
    sender, receiver = pair()
    sealed = sender.seal(b"some words")
    for size in range(len(sealed)):
        assert refusal(receiver, sealed[:size]) == ("short" if size < OVERHEAD else "seal")
    assert refusal(receiver, sealed + b"!") == "seal"


def test_another_key_or_epoch_opens_nothing() -> None:
    sender, stranger = pair(bytes(32))
    assert refusal(stranger, sender.seal(b"hi")) == "seal"
    assert refusal(Seal(SECRET, os.urandom(16), epoch=1), sender.seal(b"hi")) == "key epoch"


def test_a_replay_is_refused_within_the_window_and_behind_it() -> None:
    sender, receiver = pair()
    sealed = [sender.seal(b"%d" % number) for number in range(3 * REPLAY_WINDOW)]
    late = sealed[REPLAY_WINDOW + 7]
    for number, datagram in enumerate(sealed):
        if datagram is not late and number < 2 * REPLAY_WINDOW:
            assert receiver.open(datagram) == b"%d" % number
    assert receiver.open(late) == b"%d" % (REPLAY_WINDOW + 7)  # out of order is fine
    for datagram in sealed[: 2 * REPLAY_WINDOW]:
        assert refusal(receiver, datagram) == "replay"
    # A jump ahead leaves behind what was never seen and is too old now.
    assert receiver.open(sealed[-1])
    for datagram in sealed[2 * REPLAY_WINDOW + 1 : -1]:
        assert receiver.open(datagram)
    assert refusal(receiver, sealed[2 * REPLAY_WINDOW - 1]) == "replay"


def test_any_order_is_taken_once() -> None:
    sender, receiver = pair()
    chance = random.Random(1)
    sealed = [sender.seal(b"%d" % number) for number in range(REPLAY_WINDOW)]
    chance.shuffle(sealed)
    opened = [receiver.open(datagram) for datagram in sealed]
    assert len(set(opened)) == REPLAY_WINDOW
    assert {refusal(receiver, datagram) for datagram in sealed} == {"replay"}


def test_a_restart_never_repeats_a_key_and_nonce() -> None:
    seen = set()
    for _ in range(50):  # fifty lives of one sender
        sender = Seal(SECRET, os.urandom(16))
        for _ in range(3):
            head = HEAD.unpack_from(sender.seal(b"same words"))
            seen.add((head[3], head[4]))
    assert len(seen) == 150
    first, second = Seal(SECRET, bytes(16)), Seal(SECRET, bytes(15) + b"\1")
    # The same counter under another boot id is another key.
    assert first.seal(b"same words")[HEAD.size :] != second.seal(b"same words")[HEAD.size :]


def test_senders_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_module, "SENDERS_MAX", 8)
    receiver = Seal(SECRET, os.urandom(16))
    for _ in range(40):
        receiver.open(Seal(SECRET, os.urandom(16)).seal(b"hi"))
    assert len(receiver._senders) == 8
    # Those without the key take up no room at all.
    for _ in range(40):
        refusal(receiver, Seal(bytes(32), os.urandom(16)).seal(b"hi"))
    assert len(receiver._senders) == 8


def test_a_sender_that_is_heard_all_the_time_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its datagrams could be replayed once enough others had come by."""
    monkeypatch.setattr(seal_module, "SENDERS_MAX", 8)
    sender, receiver = pair()
    first = sender.seal(b"once")
    receiver.open(first)
    for _ in range(30):
        receiver.open(sender.seal(b"still here"))
        receiver.open(Seal(SECRET, os.urandom(16)).seal(b"passing by"))
    assert refusal(receiver, first) == "replay"


def test_hostile_datagrams_are_refused_with_a_reason_and_leave_nothing_behind() -> None:
    chance = random.Random(7)
    _, receiver = pair()
    tracemalloc.start()
    reasons = set()
    for size in (*range(65), 65_507):
        for first in (0x20, 0x10, 0x01, 0xFF):
            for rest in (bytes(size), chance.randbytes(size), b"\xff" * size):
                data = (bytes((first,)) + rest)[:size]
                reasons.add(refusal(receiver, data))
    for epoch in (0, 1):
        sealed_like = bytes((SEALED, 1, 0, 0, 0, epoch))
        for _ in range(200):
            reasons.add(refusal(receiver, sealed_like + chance.randbytes(60)))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons == {"short", "not sealed", "format version", "key epoch", "seal"}
    assert not receiver._senders
    assert grown < 1 << 20
