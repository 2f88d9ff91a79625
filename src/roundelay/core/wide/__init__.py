"""HGRSB, the hierarchy: several networks, one order (Hoque, Amin, Hossain §7–§9).

Each local network is a GRSB group of its own (`core.grsb`), and so is the global level above them;
`site` says how they are joined and lists the deviations.
"""
