"""Space-time diagrams of a trace."""
