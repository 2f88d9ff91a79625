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
counter; a forked child gets a boot id of its own.  A receiver keeps a window of 1,024 counters
per boot id: what is older, or was seen, is a replay.  Who does not have the secret can neither
read nor write; who has it is trusted.
"""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from roundelay.core.errors import InvariantBroken, MalformedPdu
from roundelay.durable import when_forked

SEALED: Final = 0x20
VERSION: Final = 1
HEAD: Final = struct.Struct(">BBI16sQ")
HEAD_SIZE: Final = HEAD.size
TAG: Final = 16
OVERHEAD: Final = HEAD.size + TAG
BOOT_ID: Final = 16
REPLAY_WINDOW: Final = 1024
WINDOW_BITS: Final = (1 << REPLAY_WINDOW) - 1
SENDERS_MAX: Final = 1024
"""Boot ids remembered; the one heard of longest ago goes first."""
NONCE: Final = struct.Struct(">IQ")
COPIED_MAX: Final = 1024
"""Below, a copy costs less than a view."""
LARGE: Final = 8192
"""Above, what is sealed or opened goes to a buffer that is used again: memory that was written a
moment ago costs less than other memory."""
BUFFER: Final = 65_536
SPARE_MAX: Final = 32
INTO: Final = hasattr(AESGCM, "decrypt_into")
"""Whether this version of `cryptography` can write to a buffer of ours."""


def _foreign(kind: int, version: int, epoch: int) -> MalformedPdu:
    """Why a datagram is none that we could open."""
    if kind != SEALED:
        return MalformedPdu("not sealed")
    if version != VERSION:
        return MalformedPdu("format version", str(version))
    return MalformedPdu("key epoch", str(epoch))


class _Sender(Struct):
    """What is known of one sender's key and counters."""

    key: AESGCM
    highest: int = 0
    seen: int = 0  # bit i: counter highest - i was seen

    def fresh(self, counter: int) -> bool:
        behind = self.highest - counter
        return behind < 0 or (behind < REPLAY_WINDOW and not self.seen >> behind & 1)

    def note(self, counter: int) -> None:
        ahead = counter - self.highest
        if ahead > 0:
            shifted = self.seen << ahead if ahead < REPLAY_WINDOW else 0
            self.seen = (shifted | 1) & WINDOW_BITS
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
        self._plain = memoryview(bytearray(BUFFER))
        self._sealed = memoryview(bytearray(BUFFER))
        self._spare: list[bytearray] = []
        self.opened = b""
        """Boot id of who sealed what was opened last."""
        when_forked(self, Seal.part)

    def part(self) -> None:
        """In a forked child: a key of its own, since the parent goes on counting with ours."""
        self._boot = os.urandom(BOOT_ID)
        self._key = self._derive(self._boot)
        self._counter = 0

    def _derive(self, boot_id: bytes) -> AESGCM:
        info = b"roundelay datagram" + struct.pack(">I", self._epoch)
        return AESGCM(HKDF(SHA256(), 32, boot_id, info).derive(self._secret))

    def seal(self, data: bytes) -> bytes:
        self._counter += 1
        head = HEAD.pack(SEALED, VERSION, self._epoch, self._boot, self._counter)
        return head + self._key.encrypt(NONCE.pack(0, self._counter), data, head)

    def seal_parts(self, parts: Iterable[bytes | memoryview]) -> bytes | memoryview:
        """The join of `parts`, sealed; a view is good until the next call."""
        plain, at = self._plain, 0
        for part in parts:
            after = at + len(part)
            if after > BUFFER - OVERHEAD:
                raise InvariantBroken("more than a datagram to seal")
            plain[at:after] = part
            at = after
        if not INTO:
            return self.seal(bytes(plain[:at]))
        self._counter += 1
        head = HEAD.pack(SEALED, VERSION, self._epoch, self._boot, self._counter)
        sealed = self._sealed
        sealed[: HEAD.size] = head
        end = at + OVERHEAD
        nonce = NONCE.pack(0, self._counter)
        self._key.encrypt_into(nonce, plain[:at], head, sealed[HEAD.size : end])
        return sealed[:end]

    def open_large(self, data: bytes | memoryview) -> bytes | memoryview:
        """Like `open`; what is large is a view of a buffer that `give_back` takes back."""
        buffer = None
        if LARGE < len(data) <= BUFFER and INTO:
            buffer = self._spare.pop() if self._spare else bytearray(BUFFER)
        opened: bytes | memoryview = self.open(data, buffer)
        return opened

    def give_back(self, view: bytes | memoryview) -> None:
        """Nobody looks at `view`, or at anything else of its buffer, any more."""
        if isinstance(view, memoryview):
            buffer = view.obj
            if type(buffer) is bytearray and len(self._spare) < SPARE_MAX:
                self._spare.append(buffer)

    def open(self, data: bytes | memoryview, buffer: bytearray | None = None) -> Any:
        """What was sealed, or MalformedPdu with the reason to count it under.

        In bytes of its own, or as a view of the beginning of `buffer`.
        """
        size = len(data)
        if size < OVERHEAD:
            raise MalformedPdu("short")
        kind, version, epoch, boot_id, counter = HEAD.unpack_from(data)
        if kind != SEALED or version != VERSION or epoch != self._epoch:
            raise _foreign(kind, version, epoch)
        sender = self._senders.get(boot_id)
        known = sender is not None
        if sender is None:
            sender = _Sender(self._derive(boot_id))
        ahead = counter - sender.highest
        if ahead <= 0 and not sender.fresh(counter):
            raise MalformedPdu("replay")
        head, nonce = data[:HEAD_SIZE], NONCE.pack(0, counter)
        inner: bytes | memoryview
        try:
            if size <= COPIED_MAX:
                inner = sender.key.decrypt(nonce, data[HEAD_SIZE:], head)
            elif buffer is None:
                inner = sender.key.decrypt(nonce, memoryview(data)[HEAD_SIZE:], head)
            else:
                inner = memoryview(buffer)[: size - OVERHEAD]
                sender.key.decrypt_into(nonce, memoryview(data)[HEAD_SIZE:], head, inner)
        except InvalidTag:
            raise MalformedPdu("seal") from None
        self.opened = boot_id
        if ahead == 1:  # as nearly all are
            sender.highest = counter
            sender.seen = (sender.seen << 1 | 1) & WINDOW_BITS
        else:
            sender.note(counter)
        if known:
            self._senders.move_to_end(boot_id)
        else:  # only who has the secret takes up room
            self._senders[boot_id] = sender
            if len(self._senders) > SENDERS_MAX:
                self._senders.popitem(last=False)
        return inner
