"""The simulator: whole groups in one thread, in virtual time, from one seed.

`kernel` is virtual time with sites, disks and loads, `network` carries their PDUs and puts faults
between them, `families` knows what is particular to each protocol, `swarm` derives a whole random
run from one integer and drives it.  Checkers, trace and codec come from outside (`kernel.ports`).
"""
