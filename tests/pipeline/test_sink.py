"""The sink: rows of a query in a group, each once, whatever is killed and when."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from roundelay.client.publisher import Publisher
from roundelay.client.recorder import RecorderClient
from roundelay.core.bundle import Bundle
from roundelay.core.errors import ConfigError
from roundelay.pipeline import sink
from roundelay.pipeline.sink import STAGED, SinkSettings, SinkTrouble, parse
from roundelay.pipeline.sink.envelope import Marker, decode_marker, encode_marker
from roundelay.pipeline.sink.stage import EpochManifest, PartFile, Stage
from tools.recording_node import RecordingNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000
PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingNode]:
    with RecordingNode(tmp_path_factory.mktemp("node"), ["out", "bare"], record=["out"]) as made:
        yield made


@pytest.fixture
def settings(node: RecordingNode, tmp_path: Path) -> SinkSettings:
    return SinkSettings(
        node.where, "token:out", f"query of {tmp_path}", str(tmp_path), timeout_s=60
    )


def rows(partition: int, text: str = "") -> list[bytes]:
    return [f"{text}{partition}:{row}".encode() for row in range(ROWS)]


def staged(settings: SinkSettings, text: str = "") -> list[PartFile]:
    """What the tasks of an epoch leave behind."""
    stage = Stage(settings.folder)
    found = []
    for partition in range(PARTITIONS):
        data = pa.array(rows(partition, text), pa.binary())
        zeros = pa.repeat(pa.scalar(0, pa.int64()), ROWS)
        batch = pa.RecordBatch.from_arrays([data, zeros, zeros], schema=STAGED)
        batches = [batch.slice(0, 1000), batch.slice(1000)]
        found.append(stage.write(partition, batches, STAGED))
    return found


def wanted(text: str = "") -> list[bytes]:
    return [row for partition in range(PARTITIONS) for row in rows(partition, text)]


def in_group(settings: SinkSettings, since: int = 0) -> list[bytes]:
    """All messages of the group that are no markers, in order."""
    with RecorderClient(settings.node, settings.group) as client:
        messages = [one for run in client.read(since) for one in run.bundle]
    return [message for message in messages if decode_marker(message) is None]


def end_of(settings: SinkSettings) -> int:
    with RecorderClient(settings.node, settings.group) as client:
        return client.status().next


def _commit_and_die(
    settings: SinkSettings, parts: list[PartFile], epoch: int, packets: int
) -> None:
    """A commit that is killed when that many packets are on their way."""
    send = Publisher.send

    def counted(
        self: Publisher, parcels: Iterator[Bundle], window: int = 1000, *, recorders: int = 0
    ) -> Iterator[int]:
        def until() -> Iterator[Bundle]:
            for number, parcel in enumerate(parcels):
                if number == packets:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield parcel

        return send(self, until(), window, recorders=recorders)

    Publisher.send = counted  # type: ignore[method-assign,assignment]
    sink.commit(settings, parts, epoch)


def killed_commit(settings: SinkSettings, parts: list[PartFile], epoch: int, packets: int) -> None:
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_commit_and_die, args=(settings, parts, epoch, packets))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_an_epoch_is_sent_once_however_often_it_is_committed(settings: SinkSettings) -> None:
    since = end_of(settings)
    parts = staged(settings)
    sink.commit(settings, parts, 0)
    sink.commit(settings, parts, 0)
    sink.commit(settings, staged(settings, "again "), 0)
    assert in_group(settings, since) == wanted()
    sink.commit(settings, staged(settings, "next "), 1)
    assert in_group(settings, since) == wanted() + wanted("next ")
    left = [path.name for path in settings.folder.iterdir()]
    assert left == ["done.json"]  # parts, lists of parts and orphans are gone


@pytest.mark.parametrize("packets", [0, 1, 7, 15])
def test_a_commit_that_is_killed_is_finished_by_the_next(
    settings: SinkSettings, packets: int
) -> None:
    since = end_of(settings)
    killed_commit(settings, staged(settings), 4, packets)
    # Spark repeats the epoch, and divides its rows in another way: what was begun counts.
    other = staged(settings, "divided otherwise ")
    killed_commit(settings, other, 4, 1)
    sink.commit(settings, other, 4)
    assert sorted(in_group(settings, since)) == sorted(wanted())
    assert not list(settings.folder.glob("part-*"))


def test_a_commit_that_is_killed_after_the_last_row_sends_nothing_again(
    settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = end_of(settings)
    monkeypatch.setattr(Stage, "finish", lambda self, epoch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sink.commit(settings, staged(settings), 2)
    monkeypatch.undo()
    sink.commit(settings, staged(settings), 2)
    assert in_group(settings, since) == wanted()


def test_rows_that_a_killed_node_left_out_of_a_packet_are_sent(settings: SinkSettings) -> None:
    since = end_of(settings)
    parts = staged(settings)
    killed_commit(settings, parts, 1, 0)
    with Publisher(settings.node, settings.group) as publisher:
        marker = encode_marker(Marker(settings.id, 1, 0, 100, 50))
        begun = Bundle.of(marker, *rows(0)[100:120])  # 20 of the 50 it speaks of
        list(publisher.send([begun], recorders=1))
        list(publisher.send([Bundle.of(b"of somebody else")], recorders=1))
    sink.commit(settings, parts, 1)
    found = in_group(settings, since)
    assert sorted(found) == sorted([*wanted(), b"of somebody else"])


def test_a_commit_waits_for_one_that_is_still_running(settings: SinkSettings) -> None:
    since = end_of(settings)
    older = Publisher(
        settings.node, settings.group, name=f"spark sink {settings.id.hex()} of a killed driver"
    )
    committing = threading.Thread(target=sink.commit, args=(settings, staged(settings), 0))
    committing.start()
    time.sleep(1)
    assert not in_group(settings, since)
    older.close()
    committing.join(60)
    assert in_group(settings, since) == wanted()


def test_without_a_recorder_the_node_itself_is_asked_what_it_sent(
    settings: SinkSettings, node: RecordingNode
) -> None:
    bare = SinkSettings(node.where, "token:bare", settings.query, settings.stage, timeout_s=60)
    killed_commit(bare, staged(bare), 0, 5)
    sink.commit(bare, staged(bare), 0)
    with Publisher(node.where, "token:bare") as publisher:
        (end,) = publisher.send([Bundle.of(b"end")])
        found = [one for _, _, bundle in publisher.history(0, end) for one in bundle]
    assert sorted(one for one in found if decode_marker(one) is None) == sorted(wanted())


def test_an_epoch_begun_through_another_node_that_is_still_there_is_refused(
    settings: SinkSettings,
) -> None:
    killed_commit(settings, staged(settings), 0, 1)
    stage = Stage(settings.folder)
    manifest = stage.manifest(0)
    assert manifest is not None
    with Publisher(settings.node, settings.group) as publisher:
        sink._check_left(publisher, manifest_of(manifest, ("b",)))  # it left
        with pytest.raises(SinkTrouble, match="begun through the node a"):
            sink._check_left(publisher, manifest_of(manifest, ("a",)))


def manifest_of(manifest: object, nodes: tuple[str, ...]) -> EpochManifest:
    from msgspec import structs

    assert isinstance(manifest, EpochManifest)
    return structs.replace(manifest, nodes=nodes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": "token:x"}, "node"),
        ({"node": "h:1", "group": "plain"}, "total order"),
        ({"node": "h:1", "group": "token:x"}, "stage"),
        ({"node": "h:1", "group": "token:x", "stage": "s3a://b/x"}, "mounted"),
        ({"node": "h:1", "group": "token:x", "stage": "/x", "checkpointLocation": "/no"}, "query"),
        ({"node": "h:1", "group": "token:x", "stage": "/x", "timeout": "soon"}, "timeout"),
        ({"node": "h:1", "group": "token:x", "colour": "red"}, "colour"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(options, streaming=True)


def test_a_table_is_written_to_a_group(spark: SparkSession, settings: SinkSettings) -> None:
    since = end_of(settings)
    table = spark.createDataFrame([(f"row {i}", 7) for i in range(100)], "data string, kind int")
    writing = table.coalesce(1).write.format("roundelay").mode("append")
    writing.option("node", settings.node).option("group", settings.group).save()
    read = spark.read.format("roundelay").option("recorder", settings.node)
    found = read.option("group", settings.group).option("seq_from", since).load()
    assert [bytes(row.data) for row in found.where("kind = 7").orderBy("seq").collect()] == [
        b"row %d" % i for i in range(100)
    ]
