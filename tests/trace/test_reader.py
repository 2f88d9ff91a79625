"""Trace files: what is in them, and what is not a trace file."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roundelay.core import events as ev
from roundelay.core.bundle import NOTHING, Bundle
from roundelay.core.engine import Notice, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.notices import notice
from roundelay.core.token.pdu import Confirm, RetxAck, RetxReq
from roundelay.trace import Flattener, Recorder, TraceFile, TraceRow, check_trace, read
from roundelay.trace import recorder as recorder_module
from roundelay.trace.fingerprint import fingerprint
from roundelay.trace.schema import arrow_schema, notice_of
from tests.trace.memory import trace_row
from tests.trace.test_recorder import BUNDLE, LogPart, some_rows

DOCS = Path(__file__).parents[2] / "docs" / "trace.md"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    with Recorder(path, params={"sites": 3, "seed": 7}) as recorder:
        recorder.rows.extend(some_rows())
    return path


def flat(obj: object, event: int = ev.SEND) -> TraceRow:
    return trace_row(Flattener(), (0, 0, event, 0, 0, obj))


def test_what_is_written_is_read_back(trace: Path) -> None:
    flattener = Flattener()
    assert list(read(trace)) == [trace_row(flattener, row) for row in some_rows()]


def test_parameters_and_times_are_known_without_reading_rows(trace: Path) -> None:
    file = TraceFile(trace)
    assert file.params == {"sites": 3, "seed": 7}
    assert (file.first_ns, file.last_ns) == (0, 10)


@pytest.mark.parametrize("lo, hi", [(None, None), (3, None), (None, 5), (3, 5), (4, 4), (50, 60)])
def test_any_stretch_of_time_can_be_read(trace: Path, lo: int | None, hi: int | None) -> None:
    wanted = [
        row for row in read(trace)
        if (lo is None or row.time >= lo) and (hi is None or row.time < hi)
    ]  # fmt: skip
    assert list(read(trace, lo, hi)) == wanted


def test_some_events_only(trace: Path) -> None:
    assert [row.event for row in TraceFile(trace).rows(events=("CRASH", "MARK"))] == [
        "MARK", "CRASH", "MARK",
    ]  # fmt: skip


def test_row_groups_outside_the_stretch_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "GROUP_ROWS", 10)
    path = tmp_path / "trace.parquet"
    with Recorder(path) as recorder:
        recorder.rows.extend((i, 0, ev.ROLE, -1, -1, ev.IDLE) for i in range(100))
    file = TraceFile(path)
    assert [len(batch) for batch in file.batches(35, 36)] == [1]
    assert [row.time for row in file.rows(35, 52)] == list(range(35, 52))


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    Recorder(path, params={"sites": 2}).close()
    assert list(read(path)) == []
    assert not check_trace(path).violations


# -- what stands in the columns --------------------------------------------------------------


def test_a_delivery_has_what_checking_order_needs(trace: Path) -> None:
    row = next(row for row in read(trace) if row.event == "DELIVER")
    assert (row.time, row.site, row.seq, row.source, row.number) == (5, 0, 0, 1, 7)
    assert (row.count, row.size, row.kind) == (2, 24, "committed")
    assert row.messages == tuple(fingerprint(message) for message in BUNDLE)
    again = next(row for row in read(trace) if row.event == "SUBMIT")
    assert again.digest == row.digest


def test_a_trace_holds_no_application_data(trace: Path) -> None:
    table = pq.read_table(trace)
    assert "0123456789" not in str(table.to_pylist())


@pytest.mark.parametrize(
    "pdu, kind, columns",
    [
        (Confirm((1, 2), 5, 3, 9), "CONFIRM", {"ts": 5, "by": 3, "tl_version": 1, "tl_site": 2}),
        (RetxReq((1, 2), 2, 5, 6, 3, 4), "RETX_REQ", {"ts": 5, "source": 3, "number": 4}),
        (LogPart((4, 1), (3, 0), (), (), True, 7), "LOG_PART", {"tl_version": 4, "seq": 7}),
    ],
)
def test_fields_of_pdus_have_columns(pdu: Pdu, kind: str, columns: dict[str, int]) -> None:
    row = flat(pdu)
    assert row.kind == kind
    assert {name: getattr(row, name) for name in columns} == columns


def test_fields_without_a_column_stand_in_info() -> None:
    assert flat(Confirm((1, 2), 5, 3, 9)).info == '{"top":9}'
    part = flat(LogPart((4, 1), (3, 0), (7, 8), ((0, 1),), True, 7))
    assert part.info == '{"tl":[3,0],"entries":2,"counters":[[0,1]],"yes":true}'


def test_a_pdu_inside_a_pdu_shows_its_fields() -> None:
    rows = [flat(obj) for _, _, event, _, _, obj in some_rows() if event == ev.SEND]
    ack, again = rows[1], flat(RetxAck(some_rows()[5][5]))  # type: ignore[arg-type]
    assert again.kind == "RETX_ACK"
    assert (again.ts, again.by, again.next, again.info) == (ack.ts, ack.by, ack.next, ack.info)
    assert (rows[2].kind, rows[2].source, rows[2].count) == ("RETX_MSG", 1, 2)


@pytest.mark.parametrize(
    "notice",
    [
        notice("view", (1, 2), (0, 1, 2), 0, 4),
        notice("view", (1, 2), (0, 1, 2), 0),
        notice("gap_unavailable", 3, 9),
        notice("indeterminate", 3, 9),
        notice("suspect", 4),
        notice("blocked", "no majority"),
        notice("unblocked"),
    ],
)
def test_a_notice_can_be_made_again_from_its_row(notice: Notice) -> None:
    assert notice_of(flat(notice, ev.NOTICE)) == notice


def test_messages_given_back_are_named_but_not_shown() -> None:
    row = flat(notice("undelivered", (BUNDLE, Bundle.of(b"x"))), ev.NOTICE)
    assert row.messages == tuple(map(fingerprint, (*BUNDLE, b"x")))
    assert row.info == "[[[12,12],[1]]]"


def test_an_empty_bundle_and_a_strange_object_do_no_harm() -> None:
    assert flat(NOTHING, ev.SUBMIT).count == 0
    assert flat(3.5, ev.FAULT).kind == "float"


def test_damaged_info_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="damaged info"):
        notice_of(TraceRow(5, 0, "NOTICE", -1, -1, kind="view", info="[1"))


def test_every_column_and_every_event_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for field in arrow_schema():
        kind = str(field.type).partition("<")[0]
        assert re.search(rf"^\| `{field.name}` \| {kind} \|", text, re.MULTILINE), field
    for event in ev.EVENT_NAMES:
        assert f"| `{event}` |" in text


# -- files that are none ---------------------------------------------------------------------


def refused(path: Path, what: str) -> None:
    for attempt in (lambda: list(read(path)), lambda: check_trace(path)):
        with pytest.raises(UsageError, match=what) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert path.name in str(caught.value)


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.parquet", "does not exist")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "is not a file")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello world" * 100])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.parquet"
    path.write_bytes(content)
    refused(path, "cannot be read")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_trace_is_refused(trace: Path, share: float) -> None:
    data = trace.read_bytes()
    trace.write_bytes(data[: int(len(data) * share)])
    refused(trace, "cannot be read")


def test_a_trace_damaged_inside_is_refused(trace: Path) -> None:
    data = bytearray(trace.read_bytes())
    for i in range(4, 400):
        data[i] ^= 0x5A
    trace.write_bytes(data)
    refused(trace, "damaged")


def test_a_foreign_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    refused(path, "not a trace of Roundelay")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.parquet"
    pq.write_table(
        pa.table({"a": [1]}).replace_schema_metadata({b"roundelay.trace.version": b"99"}), path
    )
    refused(path, "version 99")


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    table = pa.table({"time": [1]}).replace_schema_metadata({b"roundelay.trace.version": b"1"})
    pq.write_table(table, path)
    refused(path, "columns")


def test_damaged_parameters_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.parquet"
    schema = arrow_schema({b"roundelay.trace.version": b"1", b"roundelay.run": b"{"})
    pq.write_table(schema.empty_table(), path)
    refused(path, "damaged parameters")


def test_checking_needs_to_know_the_sites(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    Recorder(path).close()
    with pytest.raises(UsageError, match="which sites"):
        check_trace(path)


def test_sites_may_be_listed(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with Recorder(path, params={"sites": [3, 7]}) as recorder:
        recorder.append((0, 3, ev.PAUSE, -1, -1, None))
        recorder.append((1, 3, ev.RESUME, -1, -1, None))
        recorder.append((2, -1, ev.MARK, -1, -1, ev.HEAL))
        recorder.append((3, -1, ev.MARK, -1, -1, ev.END))
    assert check_trace(path).sites == (3, 7)


def test_a_site_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with Recorder(path, params={"sites": 2}) as recorder:
        recorder.append((0, 5, ev.SUBMIT, 0, -1, BUNDLE))
    with pytest.raises(UsageError, match="no site 5"):
        check_trace(path)
