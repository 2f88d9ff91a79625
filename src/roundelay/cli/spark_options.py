"""The options that every command on Spark has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from roundelay.core.errors import ConfigError


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --master, --remote and --conf; the command gets them as `spark_conf`, a SparkOptions."""

    @click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[N], spark://HOST:PORT, …; if absent, here on all cores.",
    )
    @click.option("--remote", metavar="sc://HOST[:PORT]", help="Run on a Spark Connect server.")
    @click.option(
        "--conf",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark; repeat it.",
    )
    @wraps(command)
    def with_spark(
        *args: Any, master: str | None, remote: str | None, settings: tuple[str, ...], **others: Any
    ) -> Any:
        from roundelay.pipeline.session import SparkOptions, require_spark

        require_spark()
        conf = {}
        for text in settings:
            key, sign, value = text.partition("=")
            if not sign or not key:
                raise ConfigError("--conf", text, "KEY=VALUE, such as spark.driver.memory=4g")
            conf[key] = value
        # On Ctrl-C py4j would tell the root logger about the call that was interrupted.
        logging.getLogger().addHandler(logging.NullHandler())
        options = SparkOptions(master=master, remote=remote, conf=conf)
        return command(*args, spark_conf=options, **others)

    return with_spark
