"""The journal: what a group delivered, on disk, in order, for as long as somebody wants it.

Append-only segments of checksummed blocks, one block per commit, with a hash chain; reading needs
no daemon.  `format` has the bytes, `segment` one file, `index` how a record is found, `journal` the
folder, `check` how damage is found and repaired.
"""
