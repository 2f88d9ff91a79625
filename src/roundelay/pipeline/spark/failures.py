"""What Spark says when something fails, as the one line that matters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from roundelay.core.errors import ConfigError, UsageError

_OURS = re.compile(r"^roundelay\.[\w.]+: (.+)$", re.MULTILINE)
_CODED = re.compile(r"\[[A-Z][A-Z0-9_.]+\] (.+)")
"""What Spark says with an error class before it."""


class JobFailed(UsageError):
    """A job on Spark ended with an error: status 2, so that nobody takes it for a verdict."""


def one_line(text: str) -> str:
    """The line of a long message that says what is wrong.

    >>> one_line("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1)")
    "Syntax error at or near 'x'. (line 1)"
    >>> one_line("job aborted\\n  Traceback …\\nroundelay.journal.archive.Gone: a file is gone\\n")
    'a file is gone'
    >>> one_line("An error occurred while calling o1.save.\\n: org.x.IO: No such folder\\n\\tat y")
    'No such folder'
    """
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    coded = _CODED.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    line = coded[1] if coded else lines[0]
    if line.startswith("An error occurred while calling") and len(lines) > 1:
        line = re.sub(r"^:\s*(?:[\w.$]+:\s*)?", "", lines[1])
    return re.sub(r"\s*SQLSTATE: \w+", "", line).strip(" ;")


def full_text(error: BaseException) -> str:
    """All that an error of Spark and those behind it say."""
    texts: dict[int, str] = {}
    pending: list[BaseException | None] = [error]
    while pending:
        cause = pending.pop()
        if cause is not None and id(cause) not in texts:
            texts[id(cause)] = str(cause)
            pending += [cause.__cause__, getattr(cause, "_cause", None)]
    return "\n".join(texts.values())


@contextmanager
def spark_errors(field: str = "", value: str = "", allowed: str = "") -> Iterator[None]:
    """Failures of Spark inside become errors of ours: of `field` if the query itself is wrong."""
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.logger import PySparkLogger

    # It would print a page for each mistake in a query, beside the line that is made of it here.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and type(error).__name__ != "Py4JJavaError":
            raise
        reason = one_line(full_text(error))
        if field and isinstance(error, AnalysisException):  # also what cannot be parsed
            raise ConfigError(field, value, f"{allowed} ({reason})") from error
        raise JobFailed(reason) from error
