"""Everything that reads many messages, traces or runs: PySpark, from one core to a cluster.

The jobs are functions over DataFrames and run unchanged on `local[*]`, a standalone cluster and
Spark Connect.  `session` is the only place that starts Spark, `schemas` the only one that says what
the columns are.
"""
