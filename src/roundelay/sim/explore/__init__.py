"""Every run of a small group: search, reductions, counterexamples."""
