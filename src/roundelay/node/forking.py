"""A forked child has a copy of its parent's node, and must not act as it.

The copy has the same sockets, the same name and the same files; seals look after themselves
(`wire.seal`), and so does the lock on the folder (`node.storage.folders`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakSet

from roundelay.core.errors import UsageError

if TYPE_CHECKING:
    from roundelay.node.node import Node

_nodes: WeakSet[Node] = WeakSet()


def watch(node: Node) -> None:
    """From now on a forked child finds `node` stopped."""
    _nodes.add(node)


def of_the_parent() -> UsageError:
    return UsageError(
        "the node belongs to the process that this one was forked from: join again here, "
        "with another name, or start this one afresh (multiprocessing: method spawn)"
    )


def _stop_copies() -> None:
    for node in list(_nodes):
        node.disown(of_the_parent())


os.register_at_fork(after_in_child=_stop_copies)
