"""Names of files and folders for names of groups and members, which may have any letters.

One mapping for everything that is kept by name.  Two names never share a file, also where a file
system takes upper and lower case for the same, and every name makes a legal one:

- percent-encoding of the UTF-8 bytes (`urllib.parse.quote`), with small hexadecimal digits;
- capital letters are encoded, too, and a full stop or underline in front, which would hide it;
- a full stop before a number at the end is: `NAME.1` is a journal of NAME that was put aside;
- what is longer than `FILE_NAME_MAX` is cut, and ends in `~` and a digest of the whole name.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final
from urllib.parse import quote

FILE_NAME_MAX: Final = 180
"""Letters: a file system has 255, and some names get an ending or a number."""
CUT: Final = "~"
"""In no name that is not cut."""
DIGEST: Final = 32
"""Hexadecimal digits of it: 128 bits."""

_ODD: Final = re.compile(r"%[0-9A-F]{2}|[A-Z~]|^[._]|\.(?=[0-9]+$)")


def file_name(name: str, *, safe: str = "", limit: int = FILE_NAME_MAX) -> str:
    """The one name of a file that stands for `name`; letters in `safe` stay as they are.

    >>> file_name("token:orders"), file_name("token:team/alpha"), file_name("Straße")
    ('token%3aorders', 'token%3ateam%2falpha', '%53tra%c3%9fe')
    """
    return bounded(_ODD.sub(_encoded, quote(name, safe=safe)), name, limit)


def bounded(encoded: str, name: str, limit: int = FILE_NAME_MAX) -> str:
    """`encoded`, which stands for `name`, or if it is too long its beginning and a digest."""
    if len(encoded) <= limit:
        return encoded
    digest = sha256(name.encode()).hexdigest()[:DIGEST]
    return encoded[: limit - DIGEST - len(CUT)] + CUT + digest


def _encoded(found: re.Match[str]) -> str:
    text = found[0]
    return text.lower() if len(text) > 1 else f"%{ord(text):02x}"
