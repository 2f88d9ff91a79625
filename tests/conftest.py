"""What holds for all tests."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # The worker itself is measured; programs that tests start need not be, and are quicker so.
    for name in [name for name in os.environ if "COVERAGE" in name]:
        del os.environ[name]
