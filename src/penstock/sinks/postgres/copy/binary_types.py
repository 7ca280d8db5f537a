"""Types whose binary form means the same on every server, so that COPY may carry it unseen.

Left out, and sent as text: what holds numbers of objects (regclass and its kind), what depends on
settings of the server (money, xml), what has no binary form (aclitem) or one that Postgres does not
read back (an empty tsquery), and everything that is not Postgres's own.
"""

from __future__ import annotations

from typing import Final

_SCALARS: Final = (
    16,  # bool
    17,  # bytea
    18,  # "char"
    19,  # name
    20,  # int8
    21,  # int2
    23,  # int4
    25,  # text
    26,  # oid
    114,  # json
    600,  # point
    601,  # lseg
    602,  # path
    603,  # box
    604,  # polygon
    628,  # line
    650,  # cidr
    700,  # float4
    701,  # float8
    718,  # circle
    774,  # macaddr8
    829,  # macaddr
    869,  # inet
    1042,  # bpchar
    1043,  # varchar
    1082,  # date
    1083,  # time
    1114,  # timestamp
    1184,  # timestamptz
    1186,  # interval
    1266,  # timetz
    1560,  # bit
    1562,  # varbit
    1700,  # numeric
    2950,  # uuid
    3220,  # pg_lsn
    3614,  # tsvector
    3802,  # jsonb
    3904,  # int4range
    3906,  # numrange
    3908,  # tsrange
    3910,  # tstzrange
    3912,  # daterange
    3926,  # int8range
)
_ARRAYS: Final = (
    199,  # json[]
    1000,  # bool[]
    1001,  # bytea[]
    1005,  # int2[]
    1007,  # int4[]
    1009,  # text[]
    1014,  # bpchar[]
    1015,  # varchar[]
    1016,  # int8[]
    1021,  # float4[]
    1022,  # float8[]
    1115,  # timestamp[]
    1182,  # date[]
    1183,  # time[]
    1185,  # timestamptz[]
    1187,  # interval[]
    1231,  # numeric[]
    2951,  # uuid[]
    3807,  # jsonb[]
)

BINARY_TYPES: Final = frozenset((*_SCALARS, *_ARRAYS))
