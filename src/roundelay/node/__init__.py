"""Real time: sockets, groups of processes, frontends.

A `Node` is one process on the medium.  It hosts any number of groups, each an engine of `core`,
and any number of applications: embedded ones (`roundelay.join`) and frontends over a socket.
"""
