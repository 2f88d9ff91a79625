"""A `wide` group (hierarchical GRSB) at a node."""
