"""Real processes under faults, judged by their traces."""
