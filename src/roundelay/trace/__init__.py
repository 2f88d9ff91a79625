"""What happened: recorded, read back, judged and drawn.

`Recorder` hashes a run's raw rows and writes them to a Parquet file of one documented schema;
`TraceFile` reads such a file; `Checker` judges a run while it happens, `check_trace` a file
afterwards; `render` draws a space-time diagram.  Live processes write a `LiveTrace` each, and
`merge` makes one file of them.  Only Parquet files need pyarrow (the extra `trace`).
"""

from roundelay.trace.checkers.checkers import Checker, check_trace
from roundelay.trace.checkers.verdict import INVARIANTS, Violation
from roundelay.trace.diagram.drawing import draw, render
from roundelay.trace.live import LiveTrace
from roundelay.trace.merge import merge
from roundelay.trace.reader import TraceFile, read
from roundelay.trace.recorder import Recorder
from roundelay.trace.schema import Flattener, TraceRow

__all__ = [
    "INVARIANTS",
    "Checker",
    "Flattener",
    "LiveTrace",
    "Recorder",
    "TraceFile",
    "TraceRow",
    "Violation",
    "check_trace",
    "draw",
    "merge",
    "read",
    "render",
]
