"""What the simulator knows of each family of protocols: drafts of runs, worlds, drivers, judges."""
