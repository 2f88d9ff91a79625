"""What came sealed is known to be intact: its checksum need not be looked at again."""

from __future__ import annotations

import os

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.errors import MalformedPdu
from roundelay.core.token.pdu import B
from roundelay.wire import seal
from roundelay.wire.codec import decode, encode

PDU = B((3, 1), 1, 7, Bundle.of(b"one", b"three"))


def test_a_wrong_checksum_is_refused_unless_the_bytes_are_known_to_be_intact() -> None:
    data = encode(PDU, sender=1, group_id=5)
    wrong = data[:-4] + bytes(4)
    with pytest.raises(MalformedPdu, match="checksum"):
        decode(wrong)
    assert decode(wrong, intact=True) == decode(data)


def test_intact_bytes_are_checked_in_every_other_way() -> None:
    data = encode(PDU, sender=1, group_id=5)
    for broken in (b"", data[:10], data[:-5], data + b"\0", b"\x7f" + data[1:]):
        with pytest.raises(MalformedPdu):
            decode(broken, intact=True)


def test_a_sealed_datagram_tells_which_run_of_which_node_sealed_it() -> None:
    secret = os.urandom(32)
    boots = [os.urandom(seal.BOOT_ID) for _ in range(3)]
    one, two, three = (seal.Seal(secret, boot) for boot in boots)
    for sealed, boot in ((one.seal(b"first"), boots[0]), (two.seal(b"first"), boots[1])):
        three.open(sealed)
        assert three.opened == boot


@pytest.mark.parametrize("size", [0, 1, seal.COPIED_MAX, seal.COPIED_MAX + 1, 65_000])
def test_what_is_sealed_is_opened_whatever_its_size(size: int) -> None:
    secret, data = os.urandom(32), os.urandom(size)
    one, two = (seal.Seal(secret, os.urandom(seal.BOOT_ID)) for _ in range(2))
    sealed = one.seal(data)
    assert two.open(sealed) == data
    spoiled = sealed[:-1] + bytes((sealed[-1] ^ 1,))
    with pytest.raises(MalformedPdu):
        two.open(spoiled)
