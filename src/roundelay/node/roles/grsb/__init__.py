"""A `journal` group (GRSB) at a node."""
