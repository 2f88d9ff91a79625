"""The one schema of trace files, and how a raw row becomes a line of it.

A trace is a Parquet file, one line per event, sorted by time.  Its columns are flat: whoever
checks order needs `time, site, seq, source, number, count, digest` and nothing nested.  What has
no column of its own stands in `info` as JSON.  docs/trace.md says what each column means for each
event; the version in the file's metadata rises when a meaning changes.

`Flattener` makes columns from raw rows.  Most rows are arrivals, which carry nothing but the five
numbers every row has; so the other columns are computed for the rest only, and spread out over
all rows by Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import Delivery, Notice, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.events import EVENT_NAMES, LOSE, RECEIVE, Addressed, Row
from roundelay.core.notices import notice
from roundelay.trace.fingerprint import Fingerprints, combined

VERSION: Final = 1
VERSION_KEY: Final = b"roundelay.trace.version"
RUN_KEY: Final = b"roundelay.run"
"""Metadata: the run's parameters as one JSON object."""

NONE: Final = -1
"""Where a row of the file has no such number (the file itself says null)."""


Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Text = Annotated[str, "string"]
"""What a column is in Python and in Arrow."""


class TraceRow(Struct, gc=False):
    """One line of a trace, in Python.  A number that the file leaves null is NONE here."""

    time: Int64
    site: Int32
    event: Text
    ref: Int64
    peer: Int32
    kind: Text = ""
    seq: Int64 = NONE
    source: Int32 = NONE
    number: Int64 = NONE
    ts: Int64 = NONE
    tl_version: Int64 = NONE
    tl_site: Int32 = NONE
    next: Int32 = NONE
    by: Int32 = NONE
    count: Int32 = NONE
    size: Int64 = NONE
    digest: Annotated[int | None, "int64"] = None
    messages: Annotated[tuple[int, ...], "list"] = ()
    info: Text = ""


SPARSE: Final = tuple(column.name for column in structs.fields(TraceRow) if not column.required)
"""The columns that only some rows have."""
BLANK: Final[list[Any]] = [None] * len(SPARSE)

KIND, SEQ, SOURCE, NUMBER, TS, TL_VERSION, TL_SITE = range(7)
NEXT, BY, COUNT, SIZE, DIGEST, MESSAGES, INFO = range(7, 14)


def arrow() -> Any:
    """pyarrow, or a line that says how to get it."""
    try:
        return import_module("pyarrow")
    except ImportError:
        raise UsageError(
            "trace files need pyarrow: install the extra with  pip install 'roundelay[trace]'"
        ) from None


def parquet() -> Any:
    """pyarrow.parquet, or a line that says how to get it."""
    arrow()
    return import_module("pyarrow.parquet")


def arrow_schema(metadata: dict[bytes, bytes] | None = None) -> Any:
    """The columns of a trace file with their types."""
    pa = arrow()
    columns = []
    for name, hint in get_type_hints(TraceRow, include_extras=True).items():
        (kind,) = hint.__metadata__
        column = pa.list_(pa.int64()) if kind == "list" else kind
        columns.append(pa.field(name, column, nullable=name in SPARSE))
    return pa.schema(columns, metadata=metadata)


def arrow_column(field: Any, values: Sequence[Any]) -> Any:
    """A column of a trace file; events are given by their codes."""
    pa = arrow()
    if field.name == "event":
        return pa.array(EVENT_NAMES, field.type).take(pa.array(values, pa.int32()))
    return pa.array(values, field.type)


def kind_of(pdu_class: type) -> str:
    """The papers' spelling of a PDU's name.

    >>> class RetxReq(Pdu): ...
    >>> kind_of(RetxReq)
    'RETX_REQ'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", pdu_class.__name__).upper()


# Fields of PDUs that have a column of their own, whichever protocol they belong to.
_COLUMN_OF_FIELD: Final = {"s": SOURCE, "n": NUMBER, "ts": TS, "by": BY, "next": NEXT, "seq": SEQ}
_VERSIONS: Final = ("v", "tl")  # a pair (version #, originator): two columns, the first there is
_INNER: Final = ("ack", "b")  # a PDU inside a PDU: its fields count as the outer one's
_COUNTED: Final = ("entries",)  # tuples of which only the length is kept

Cells = list[Any]
_Plan = tuple[str, list[tuple[str, int]], tuple[str, ...], str]
"""Of a class of PDU: kind, fields with a column of their own, other fields, which is its list."""


class Flattener:
    """Turns raw rows into the columns of the schema."""

    def __init__(self) -> None:
        self._fingerprints = Fingerprints()
        self._plans: dict[type, _Plan] = {}
        self._json: dict[tuple[object, ...], str] = {}

    def cells(self, obj: object) -> Cells:
        """The sparse columns of one raw row's `obj`."""
        cells = BLANK[:]
        if isinstance(obj, str):
            cells[KIND] = obj
        elif isinstance(obj, Pdu):
            self._pdu(obj, cells)
            cells[KIND] = self._plans[type(obj)][0]
        elif isinstance(obj, Delivery):  # also with more to it than the trace has columns for
            self._delivery(obj, cells)
        elif isinstance(obj, Bundle):
            self._bundle(obj, cells)
        elif isinstance(obj, Addressed):
            self._bundle(obj.bundle, cells)
            cells[INFO] = msgspec.json.encode(obj.to).decode()
        elif isinstance(obj, Notice):
            self._notice(obj, cells)
        elif obj is not None:
            cells[KIND] = type(obj).__name__
        return cells

    def record_batch(self, rows: Sequence[Row], schema: Any) -> Any:
        """The rows as an Arrow record batch."""
        pa = arrow()
        *heads, objs = zip(*rows, strict=True)
        dense: list[Cells] = []
        slots: list[int | None] = []
        losses: dict[str, int] = {}  # reasons of losses are few: one line of cells each
        for event, obj in zip(heads[2], objs, strict=True):
            if event == RECEIVE:
                slots.append(None)
            elif event == LOSE and obj in losses:
                slots.append(losses[obj])
            else:
                if event == LOSE and isinstance(obj, str):
                    losses[obj] = len(dense)
                slots.append(len(dense))
                dense.append(self.cells(obj))
        take = pa.array(slots, pa.int32())
        left = iter(schema)
        columns = [arrow_column(next(left), values) for values in heads]
        lists = zip(*dense, strict=True) if dense else [()] * len(SPARSE)
        for field, values in zip(left, lists, strict=True):
            columns.append(arrow_column(field, values).take(take))
        return pa.record_batch(columns, schema=schema)

    # -- what each kind of object says ------------------------------------------------------

    def _bundle(self, bundle: Bundle, cells: Cells) -> None:
        messages = self._fingerprints(bundle)
        cells[COUNT] = len(messages)
        cells[SIZE] = len(bundle.data)
        cells[DIGEST] = combined(messages)
        cells[MESSAGES] = messages

    def _notice(self, notice: Notice, cells: Cells) -> None:
        info: Any = notice.info
        cells[KIND] = notice.kind
        cells[INFO] = msgspec.json.encode(_without_data(info)).decode()
        if notice.kind == "view":
            (cells[TL_VERSION], cells[TL_SITE]), members, cells[NEXT] = info[:3]
            cells[COUNT] = len(members)
            if len(info) > 3:
                cells[SEQ] = info[3]
        elif notice.kind in ("gap_unavailable", "indeterminate"):
            lo, hi = info[:2]
            cells[SEQ if notice.kind == "gap_unavailable" else NUMBER] = lo
            cells[COUNT] = hi - lo
        elif notice.kind == "suspect":
            cells[SOURCE] = info[0]
        bundles = bundles_in(info)
        if bundles:
            self._bundle(Bundle.merged(bundles), cells)

    def _delivery(self, delivery: Delivery, cells: Cells) -> None:
        cells[KIND] = delivery.stage
        cells[SEQ] = delivery.seq
        cells[SOURCE] = delivery.source
        cells[NUMBER] = delivery.number
        self._bundle(delivery.bundle, cells)

    def _pdu(self, pdu: Struct, cells: Cells) -> None:
        plan = self._plans.get(type(pdu))
        if plan is None:
            plan = self._plans[type(pdu)] = _plan(type(pdu))
        _, direct, rest, version = plan
        for name, column in direct:
            cells[column] = getattr(pdu, name)
        if not rest:
            return
        fields: list[object] = [type(pdu)]
        for name in rest:
            value = getattr(pdu, name)
            if name == version:
                cells[TL_VERSION], cells[TL_SITE] = value
            elif type(value) is Bundle:
                # Transmissions are many and their messages known from elsewhere: no list of them.
                cells[COUNT] = len(value.sizes)
                cells[SIZE] = len(value.data)
                cells[DIGEST] = combined(self._fingerprints(value))
            elif name in _INNER and isinstance(value, Struct):
                self._pdu(value, cells)
            elif name == "payload":  # AutoRM: a part of a message, of which a trace has none
                cells[SIZE] = len(value)
            elif type(value) is bytes:  # AutoRM: a UUID
                fields += (name, value.hex())
            else:
                fields += (name, len(value) if name in _COUNTED else value)
        if len(fields) > 1:
            cells[INFO] = self._remembered(tuple(fields))

    def _remembered(self, fields: tuple[object, ...]) -> str:
        """JSON of (class, name, value, name, value, …); the same few come again and again."""
        try:
            text = self._json.get(fields)
        except TypeError:  # a value that cannot be a key
            return _json_of(fields)
        if text is None:
            if len(self._json) >= 4096:
                self._json.clear()
            text = self._json[fields] = _json_of(fields)
        return text


def _json_of(fields: tuple[object, ...]) -> str:
    return msgspec.json.encode(dict(zip(fields[1::2], fields[2::2], strict=True))).decode()


def _plan(pdu_class: type[Struct]) -> _Plan:
    names = pdu_class.__struct_fields__
    direct = [(name, _COLUMN_OF_FIELD[name]) for name in names if name in _COLUMN_OF_FIELD]
    rest = tuple(name for name in names if name not in _COLUMN_OF_FIELD)
    version = next((name for name in _VERSIONS if name in names), "")
    return kind_of(pdu_class), direct, rest, version


def bundles_in(info: object) -> list[Bundle]:
    """The bundles that a notice carries (own messages given back)."""
    if isinstance(info, Bundle):
        return [info]
    if isinstance(info, tuple | list):
        return [bundle for item in info for bundle in bundles_in(item)]
    return []


def _without_data(info: object) -> object:
    """`info` with a bundle's sizes in place of the bundle: a trace has no application data."""
    if isinstance(info, Bundle):
        return info.sizes
    if isinstance(info, tuple | list):
        return [_without_data(item) for item in info]
    return info


def notice_of(row: TraceRow) -> Notice:
    """The notice that a NOTICE line was made from (lists in place of tuples made good)."""
    try:
        info = msgspec.json.decode(row.info or "[]", type=list[Any])
    except msgspec.MsgspecError:
        raise UsageError(f"a notice at {row.time} ns has damaged info: {row.info!r}") from None
    return notice(row.kind, *(_tuples(item) for item in info))


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
