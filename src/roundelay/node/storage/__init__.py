"""What a node keeps on disk for its groups, and whose the folder is."""
