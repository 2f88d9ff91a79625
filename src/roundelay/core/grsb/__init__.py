"""GRSB, flat: guaranteed, reliable, secure broadcast (Hoque, Amin, Hossain §1–§6).

A Central Retransmitter gives every message its place in one order and broadcasts it; a Designated
Acknowledger is the only node that answers; Playback Recorders listen and keep what was said for
those who were away; user nodes overhear it all and repair themselves from a recorder.  `site` puts
the roles together and lists the deviations.
"""
