"""The simulator: whole groups in one thread, in virtual time, from one seed.

`world` drives the engines, `media` carries their PDUs, `links` are the faults put between sites,
`load` submits messages, `plan` derives a whole random run from one integer and `driver` runs it;
`scenario` executes a script.  Checkers, trace and codec come from outside (`ports`).
"""
