"""What is done to segments beside the appending: taking over, sealing, rewriting, letting go."""
