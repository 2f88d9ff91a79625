"""Gate: how many of the core's branches do the tests take?

    python tools/core_coverage.py build/coverage.json [--least 95]

Reads what `coverage json` wrote and counts branches alone, of `src/roundelay/core` alone: the
percentage that coverage prints mixes lines with branches, which flatters.  Prints the figure and
the files that miss branches; exit status 1 below the least that is allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path, PurePath

CORE = ("src", "roundelay", "core")


def in_core(name: str) -> bool:
    """Is this one of the core's files?

    >>> in_core("src/roundelay/core/token/site.py"), in_core("src/roundelay/sim/core.py")
    (True, False)
    """
    parts = PurePath(name.replace("\\", "/")).parts
    return any(parts[at : at + len(CORE)] == CORE for at in range(len(parts)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path, help="output of `coverage json`")
    parser.add_argument("--least", type=float, default=95.0, help="per cent of branches (95)")
    options = parser.parse_args()

    files = json.loads(options.report.read_text())["files"]
    core = {name: entry["summary"] for name, entry in files.items() if in_core(name)}
    branches = sum(summary["num_branches"] for summary in core.values())
    covered = sum(summary["covered_branches"] for summary in core.values())
    if not branches:
        print(f"core_coverage: no branches of the core in {options.report}", file=sys.stderr)
        return 1

    for name, summary in sorted(core.items()):
        if missing := summary["num_branches"] - summary["covered_branches"]:
            print(f"  {name}: {missing} of {summary['num_branches']} branches not taken")
    per_cent = 100 * covered / branches
    print(
        f"core: {covered} of {branches} branches taken, {per_cent:.2f} %"
        f" (at least {options.least:g} %)"
    )
    return 0 if per_cent >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
