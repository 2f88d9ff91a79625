"""docs/wire.md shows what the code does."""

from __future__ import annotations

import re

from roundelay.wire.codec import decode
from roundelay.wire.layouts import LAYOUTS
from tests.wire.examples import EXAMPLES, PAGE, packet, written


def test_the_page_is_what_the_tables_say() -> None:
    hint = "run `python -m tests.wire.examples` to write it anew"
    assert PAGE.read_text(encoding="utf-8") == written(), hint


def test_the_bytes_on_the_page_are_those_of_the_codec() -> None:
    """Independent of how the page is made: take the hex from the text and decode it."""
    blocks = re.findall(r"```\n(head .*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    packets = [bytes.fromhex(re.sub(r"head|body|crc|\s", "", block)) for block in blocks]
    assert packets == [packet(pdu) for pdu in EXAMPLES]
    assert [decode(data).pdu for data in packets] == list(EXAMPLES)


def test_there_is_an_example_of_every_pdu() -> None:
    assert [type(pdu) for pdu in EXAMPLES] == [layout.pdu for layout in LAYOUTS]
