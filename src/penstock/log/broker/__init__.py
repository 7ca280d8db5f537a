"""What logs on brokers have in common.

A log is a row of entries, one for each slice, in the order of their commits. An entry holds the slice's head, where the
log ended before it, and where its bytes are: a small slice lies in its entry, a large one in pieces
beside the row, so that who plans reads only entries and who decodes fetches only its own pieces.

    entries   begin ─ whole ─ part ─ part ─ last ─ marker ─ whole ─ …
                        │       │      │      │                │
    pieces            [1..8]  [9..16][17..24][25]           [26..29]

How entries and pieces are kept is a transport's to say (`penstock.log.broker.transport`).
"""
