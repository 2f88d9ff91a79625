"""The protocols as pure state machines.

Nothing in here reads a clock, a socket, a file or a global source of randomness: time and
randomness are arguments, decoded PDUs go in, one batch of effects comes out.  `roundelay.core`
imports nothing of ours but `roundelay.core`; a tool in `make check` enforces that.
"""
