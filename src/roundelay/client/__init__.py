"""Applications in Python: `join` a group, embedded in the process or through a node."""
