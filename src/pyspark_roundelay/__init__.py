"""Makes `spark.read.format("roundelay")` known without a call: Spark looks for packages of this
name, and takes their `DefaultSource`.  The source itself is `roundelay.pipeline.source`.
"""

from roundelay.pipeline.source import RoundelaySource as DefaultSource

__all__ = ["DefaultSource"]
