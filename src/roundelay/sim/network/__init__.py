"""How PDUs travel in virtual time, and what happens to them on the way."""
