"""A stream through source and sink that is killed loses nothing and doubles nothing.

`python -m bench.stream_kills` does it 20 times over a million messages.
"""

from __future__ import annotations

import pytest

from bench.stream_kills import main


def test_a_stream_that_is_killed_goes_on_with_none_lost_and_none_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--messages", "4000", "--kills", "1", "--rows", "500", "--rate", "1000"]
    assert main([*words, "--life", "1"]) == 0
    assert "0 lost, 0 twice, in order" in capsys.readouterr().out
