"""Bytes ⇄ PDUs.

`codec` has the envelope that all PDUs share, `layouts` the table of every PDU's body, `fields` the
kinds of fields those tables are made of.  `docs/wire.md` shows the result byte by byte.
"""
