"""What holds for all tests."""

from __future__ import annotations

import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:
    # The worker itself is measured; programs that tests start need not be, and are quicker so.
    for name in [name for name in os.environ if "COVERAGE" in name]:
        del os.environ[name]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell lets what it starts in the background ignore interrupts; some tests send them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
