"""What the README shows runs, and does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_ten_lines_give_three_processes_one_history(tmp_path: Path) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    # On this machine only, on a medium of its own, with a key of its own.
    port = 20000 + os.getpid() % 20000
    code = code.replace(
        'join("orders", name=name)',
        f'join("orders", name=name, interface="lo", multicast="239.255.77.1:{port}")',
    )
    assert "239.255.77.1" in code
    (tmp_path / "hello.py").write_text(code)
    env = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "hello.py", name],
            cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("ann", "bob", "cat")
    ]  # fmt: skip
    try:
        results = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], results
    printed = [out.splitlines() for out, _ in results]
    assert printed[0] == printed[1] == printed[2]
    assert [line.split()[0] for line in printed[0]] == ["0", "1", "2"]
    assert {line.split()[1] for line in printed[0]} == {"ann", "bob", "cat"}
