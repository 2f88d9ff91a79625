"""A network in one process whose faults come from a seed: the userspace switch."""
