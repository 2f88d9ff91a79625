"""What a token site is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundelay.core.token.site import TokenSite


@dataclass(slots=True, eq=False)
class Part:
    """State with its own rules and invariants; by its site it finds the other parts."""

    site: TokenSite

    def check_invariants(self) -> None:
        """Raise InvariantBroken if its state is one that no sequence of calls may lead to."""
