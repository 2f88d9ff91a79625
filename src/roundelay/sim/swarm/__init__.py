"""Random runs: one integer decides a plan, and the plan is carried out."""
