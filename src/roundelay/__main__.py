"""`python -m roundelay`: the command line."""

from __future__ import annotations

from roundelay.cli.main import main

if __name__ == "__main__":
    main()
