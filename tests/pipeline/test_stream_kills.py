"""A stream through source and sink that is killed loses nothing and doubles nothing.

`python -m bench.stream_kills` does it 20 times over a million messages.
"""

from __future__ import annotations

import subprocess
import sys


def test_a_stream_that_is_killed_goes_on_with_none_lost_and_none_twice() -> None:
    command = [sys.executable, "-m", "bench.stream_kills"]
    command += ["--messages", "4000", "--kills", "1", "--rows", "500", "--rate", "1000"]
    ended = subprocess.run([*command, "--life", "1"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "0 lost, 0 twice, in order" in ended.stdout
