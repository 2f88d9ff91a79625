"""Sealed datagrams: AES-256-GCM under a key that the members share.

::

    off  size  field
      0     1  0x20: a sealed datagram
      1     1  version of this format, 1
      2     4  epoch of the key
      6    16  boot id of the sender, random at each start
     22     8  counter, starts at 1
     30     …  what is sealed, encrypted
    end    16  tag

Everything before the encrypted part is authenticated.  The key of a sender is
HKDF(secret, boot id), so a restart never repeats a (key, nonce) pair, and the nonce is the
counter.  A receiver keeps a window of 1,024 counters per boot id: what is older, or was seen, is
a replay.  Who does not have the secret can neither read nor write; who has it is trusted.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from roundelay.core.errors import MalformedPdu

SEALED: Final = 0x20
VERSION: Final = 1
HEAD: Final = struct.Struct(">BBI16sQ")
TAG: Final = 16
OVERHEAD: Final = HEAD.size + TAG
BOOT_ID: Final = 16
BOOT_ID_AT: Final = 6
REPLAY_WINDOW: Final = 1024
SENDERS_MAX: Final = 1024
"""Boot ids remembered; the one heard of longest ago goes first."""
NONCE: Final = struct.Struct(">IQ")
COPIED_MAX: Final = 1024
"""Below, a copy costs less than a view."""


def boot_of(sealed: bytes) -> bytes:
    """Who sealed a datagram; to be believed once it was opened."""
    return sealed[BOOT_ID_AT : BOOT_ID_AT + BOOT_ID]


class _Sender:
    """What is known of one sender's key and counters."""

    __slots__ = ("highest", "key", "seen")

    def __init__(self, key: AESGCM) -> None:
        self.key = key
        self.highest = 0
        self.seen = 0  # bit i: counter highest - i was seen

    def fresh(self, counter: int) -> bool:
        behind = self.highest - counter
        return behind < 0 or (behind < REPLAY_WINDOW and not self.seen >> behind & 1)

    def note(self, counter: int) -> None:
        ahead = counter - self.highest
        if ahead > 0:
            shifted = self.seen << ahead if ahead < REPLAY_WINDOW else 0
            self.seen = (shifted | 1) & ((1 << REPLAY_WINDOW) - 1)
            self.highest = counter
        else:
            self.seen |= 1 << -ahead


class Seal:
    """Seals what one process sends and opens what it receives."""

    def __init__(self, secret: bytes, boot_id: bytes, epoch: int = 0) -> None:
        self._secret = secret
        self._epoch = epoch
        self._boot = boot_id
        self._key = self._derive(boot_id)
        self._counter = 0
        self._senders: OrderedDict[bytes, _Sender] = OrderedDict()

    def _derive(self, boot_id: bytes) -> AESGCM:
        info = b"roundelay datagram" + struct.pack(">I", self._epoch)
        return AESGCM(HKDF(SHA256(), 32, boot_id, info).derive(self._secret))

    def seal(self, data: bytes) -> bytes:
        self._counter += 1
        head = HEAD.pack(SEALED, VERSION, self._epoch, self._boot, self._counter)
        return head + self._key.encrypt(NONCE.pack(0, self._counter), data, head)

    def open(self, data: bytes) -> bytes:
        """What was sealed, or MalformedPdu with the reason to count it under."""
        if len(data) < OVERHEAD:
            raise MalformedPdu("short")
        kind, version, epoch, boot_id, counter = HEAD.unpack_from(data)
        if kind != SEALED:
            raise MalformedPdu("not sealed")
        if version != VERSION:
            raise MalformedPdu("format version", str(version))
        if epoch != self._epoch:
            raise MalformedPdu("key epoch", str(epoch))
        sender = self._senders.get(boot_id)
        known = sender is not None
        if sender is None:
            sender = _Sender(self._derive(boot_id))
        if not sender.fresh(counter):
            raise MalformedPdu("replay")
        try:
            # A view of a large one: no copy.
            inside = memoryview(data)[HEAD.size :] if len(data) > COPIED_MAX else data[HEAD.size :]
            inner = sender.key.decrypt(NONCE.pack(0, counter), inside, data[: HEAD.size])
        except InvalidTag:
            raise MalformedPdu("seal") from None
        sender.note(counter)
        if known:
            self._senders.move_to_end(boot_id)
        else:  # only who has the secret takes up room
            self._senders[boot_id] = sender
            if len(self._senders) > SENDERS_MAX:
                self._senders.popitem(last=False)
        return inner
