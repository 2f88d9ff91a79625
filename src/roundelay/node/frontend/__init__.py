"""Applications behind a socket."""
