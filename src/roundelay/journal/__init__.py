"""The journal: what a group delivered, on disk, in order, for as long as somebody wants it.

Append-only segments of checksummed blocks, one block per commit, with a hash chain; reading needs
no daemon.

    format    the bytes of a block               files     the small files
    segment   one file: scanning, reading        index     where things are in a sealed segment
    reader    selecting                          journal   appending and syncing
    parquet   the same for Spark                 arrow     the same as Arrow batches
    archive   what a folder of Parquet holds     merge     several recorders' records as one
    grsb      what recorders of GRSB keep        moments   times as people write them

    upkeep/   opening: taking over what was left; keeper: sealing, filling, letting go; rewrite:
              sealing, writing a segment anew; sealing: the process that seals
    damage/   check: finding it, in a journal or in one segment; repair: putting it right;
              salvage: what can be had of a damaged block

Deviations from the design: the hash chain goes from segment to segment, not from block to block,
and is computed when a segment is sealed: SHA-256 takes three times as long as writing does.
"""
