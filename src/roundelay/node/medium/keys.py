"""The secret that the members of a medium share.

Like a cookie: whoever has the file may take part.  Without `key` it is `~/.config/roundelay/key`
(or under `$XDG_CONFIG_HOME`), made at the first use and readable by its owner only.  So processes
of one user on one machine find each other sealed from the start, and copying the file admits
another machine.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from roundelay.core.errors import ConfigError

SECRET_BYTES: Final = 32
FILE_CHARACTERS: Final = 1024
"""Of the file so much is read: more than any key has."""


def default_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "roundelay" / "key"


def load_secret(path: Path | None) -> bytes:
    """The secret in `path`; the default file is made if it is not there."""
    file_path = path or default_path()
    try:
        if path is None and not file_path.exists():
            _make(file_path)
        with file_path.open(encoding="ascii") as file:
            _check_private(file_path, os.fstat(file.fileno()))
            secret = bytes.fromhex(file.read(FILE_CHARACTERS).strip())
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        allowed = (
            f"a readable file with {SECRET_BYTES} bytes in hexadecimal ({error}); "
            "make one with `openssl rand -hex 32`, or use --insecure for datagrams in the clear"
        )
        raise ConfigError("key", file_path, allowed) from None
    if len(secret) != SECRET_BYTES:
        raise ConfigError("key", file_path, f"a file with {SECRET_BYTES} bytes in hexadecimal")
    return secret


def _check_private(path: Path, status: os.stat_result) -> None:
    """Whoever can read the file can take part, and whoever can write it decides who does."""
    if status.st_uid not in (os.geteuid(), 0):
        allowed = "a file of this user (it belongs to another): copy it and `chmod 600` the copy"
        raise ConfigError("key", path, allowed)
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
        allowed = f"a file that only its owner can read: run `chmod 600 {path}`"
        raise ConfigError("key", path, allowed)


def _make(path: Path) -> None:
    """Write the file whole or not at all: several processes may start at once."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, secrets.token_hex(SECRET_BYTES).encode() + b"\n")
        os.close(handle)
        with suppress(FileExistsError):  # another process was first: its secret counts
            os.link(aside, path)
    finally:
        os.unlink(aside)
