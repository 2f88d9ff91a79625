"""Bytes ⇄ PDUs, and the other packets that nodes, frontends and the switch exchange.

`envelope` has what all PDUs share, `layouts` the table of their types, `compiler` makes readers and
writers of what their classes say (`core.fields`), and `codec` puts these together.  `docs/wire.md`
shows the result byte by byte.  Datagrams are cut by `fragments` and sealed by `seal`; AutoRM's
packets are in `beamon`, ours beside them in `control`.
"""
