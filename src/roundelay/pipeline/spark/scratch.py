"""A folder of ours in the temporary folder, which everybody can write to.

Its name can be guessed, so somebody else may have made it first, or a link in its place: it is used
only if it is a folder, ours, and closed to others.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from roundelay.core.errors import ConfigError


def private_folder(path: Path) -> Path:
    """`path` as a folder that only this user can enter; ConfigError if it is somebody else's."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()  # of a link itself, not of where it leads
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not ours or status.st_mode & 0o077:
        allowed = (
            "a folder of your own that others cannot enter: somebody made this one; remove it, or "
            "set TMPDIR to another place"
        )
        raise ConfigError("folder", path, allowed)
    return path


def private_temporary_folder() -> Path:
    """One for each user, the same every time."""
    return private_folder(Path(tempfile.gettempdir()) / f"roundelay-{os.getuid()}")
