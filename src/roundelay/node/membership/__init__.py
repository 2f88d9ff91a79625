"""Who is in a group: rosters, epochs, settings, names, histories."""
