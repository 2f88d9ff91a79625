"""Chang–Maxemchuk 1984: a rotating token site gives every message its place in one order."""
