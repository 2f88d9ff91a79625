"""Applications of every service under faults, judged by their own logs."""
