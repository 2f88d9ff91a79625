"""Nakamura & Takizawa: ordered broadcast under fully distributed control.

No site is special.  Every member decides by itself when a PDU is safely received, in three phases:
it *accepted* the PDU; it knows that every destination accepted it (*pre-acknowledged*); it knows
that every destination knows that (*acknowledged*).  What TO, PO and SPO share is in `state`,
`sending`, `exchange` and `repair`; `po`, `spo`, `to` and `channel` hold what makes each of them.
"""
