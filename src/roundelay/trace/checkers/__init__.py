"""The promises of a group, one judge for each."""
