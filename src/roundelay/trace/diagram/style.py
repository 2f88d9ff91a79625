"""The look of a space-time diagram: colours, styles, signs, and labels that give way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from roundelay.core.events import PASSING, TOKEN

# What PDUs look like.  Data is blue, its acknowledgement orange; repairs are purple; the phases of
# a reformation go from teal to brown.  Red is kept for losses.
COLOURS: Final = {
    "B": "#1f6fb4", "ACK": "#d9730d", "CONFIRM": "#2e9e4f", "RETX_REQ": "#b5179e",
    "RETX_ACK": "#7b4fb5", "RETX_MSG": "#5a3d9a", "RETX_BULK": "#5a3d9a", "TL_HINT": "#6c757d",
    "ACK_RUN": "#d9730d", "INVITE": "#007f86", "VOTE1": "#12a594", "NEW_TL": "#8a5a2b",
    "VOTE2": "#b08255", "NEW_TOKEN": "#a88600", "ABORT": "#343a40", "RECOVER_REQ": "#5f8f00",
    "RECOVER_DATA": "#3f6212", "PA_B": "#1f6fb4", "PA_ACK": "#d9730d",
}  # fmt: skip
SPARE: Final = ("#0f4c81", "#9c5700", "#00695c", "#6a1b9a", "#4e6b00", "#37474f", "#8d3b72")
RED: Final = "#d11d2a"
GOLD: Final = "#f2b705"

LABEL_PX: Final = 10
CHARACTER: Final = 0.6
"""Width of a character as a share of its size: a guess on the safe side."""

STYLE: Final = """
svg{font-family:-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#222}
.h{font-size:17px;font-weight:600}.sub{font-size:12px;fill:#666}.site{font-size:13px;font-weight:600}
.tick{font-size:11px;fill:#666}.l{font-size:10px;paint-order:stroke;stroke:#fff;stroke-width:3px;
stroke-linejoin:round}.q{font-size:10px;fill:#8a8a8a}.leg{font-size:12px}
.p line{stroke-width:1.25}.p:hover line{stroke-width:3}.p .hit{stroke:transparent;stroke-width:7}
.p:hover .hit{stroke-width:7}
"""

# Stretches of a lane: (half its height, radius, colour, opacity, what the site does, a word in it).
BANDS: Final = {
    TOKEN: (5, 2, GOLD, 0.85, "holds the token", ""),
    PASSING: (5, 2, GOLD, 0.3, "has passed the token on, waits for its acceptance", ""),
    "crash": (8, 3, "#8b8b8b", 0.45, "is down", "down"),
    "pause": (8, 3, "#b9c6d3", 0.45, "is paused", "paused"),
}


def _band(fill: str, opacity: float, half: int = 5, radius: int = 2) -> str:
    return (
        f'<rect y="-{half}" width="24" height="{2 * half}" rx="{radius}" fill="{fill}" '
        f'opacity="{opacity}"/>'
    )


_VIEW: Final = '<rect x="4" y="-7" width="18" height="12" rx="2" fill="#0b6e4f"/>'

# What there is to see besides arrows: (what it stands for, a small picture, words).
SIGNS: Final = (
    ("token", _band(GOLD, 0.85), "holds the token"),
    ("passing", _band(GOLD, 0.3), "has passed it on, acceptance unseen"),
    ("SUBMIT", '<path d="M12,5l-3.5,-7h7z" fill="#fff" stroke="#555"/>', "submits"),
    ("DELIVER", '<circle cx="12" r="3.6" fill="#111"/>', "delivers (position)"),
    ("lost", f'<path d="M8.5,-3.5l7,7m0,-7l-7,7" stroke="{RED}" stroke-width="1.8"/>', "lost"),
    ("CRASH", '<path d="M7,-5l10,10m0,-10l-10,10" stroke="#000" stroke-width="3"/>', "crash"),
    ("RESTART", '<path d="M7,-7v14l11,-7z" fill="#0b6e4f"/>', "restart"),
    ("crash", _band("#8b8b8b", 0.45, 8, 3), "down"),
    ("pause", _band("#b9c6d3", 0.6, 8, 3), "paused"),
    ("view", _VIEW, "new list in force"),
)


def colours_of(kinds: Collection[str]) -> dict[str, str]:
    """A colour for each kind: the known ones in their order, then the others by name."""
    colours = {kind: colour for kind, colour in COLOURS.items() if kind in kinds}
    for i, kind in enumerate(sorted(set(kinds) - COLOURS.keys())):
        colours[kind] = SPARE[i % len(SPARE)]
    return colours


class LabelPlaces:
    """Keeps labels from covering each other."""

    def __init__(self, left: float, right: float) -> None:
        self._left, self._right = left, right
        self._columns: dict[int, list[tuple[float, float, float, float]]] = {}

    def take(self, x: float, y: float, text: str, anchor: str, size: float = LABEL_PX) -> bool:
        """Reserve the place of `text` with its baseline at (x, y), unless it is taken."""
        width = len(text) * size * CHARACTER
        x0 = x - width if anchor == "end" else x - width / 2 if anchor == "middle" else x
        return self.take_box(x0 - 1, y - size * 0.85, x0 + width + 1, y + size * 0.25)

    def take_box(self, x0: float, y0: float, x1: float, y1: float) -> bool:
        if x0 < self._left or x1 > self._right:
            return False
        columns = range(int(x0) // 128, int(x1) // 128 + 1)
        for column in columns:
            for a0, b0, a1, b1 in self._columns.get(column, ()):
                if x0 < a1 and a0 < x1 and y0 < b1 and b0 < y1:
                    return False
        for column in columns:
            self._columns.setdefault(column, []).append((x0, y0, x1, y1))
        return True
