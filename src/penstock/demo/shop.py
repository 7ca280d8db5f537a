"""A small shop: its tables, and what must hold in them. Knows nothing of penstock.

Two sums hold in every committed state: pieces in stock and pieces sold make `PIECES` together, and
the totals of all orders are what their items cost. Half a transaction breaks one of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg import sql

TABLES = ("customers", "products", "orders", "order_items")
SCHEMA = """
CREATE TYPE order_status AS ENUM ('placed', 'paid', 'shipped');
CREATE TABLE customers (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email       text NOT NULL UNIQUE,
    preferences jsonb NOT NULL DEFAULT '{}',
    joined_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE products (
    sku   text PRIMARY KEY,
    title text NOT NULL,
    price numeric(10,2) NOT NULL,
    stock integer NOT NULL CHECK (stock >= 0),
    tags  text[] NOT NULL DEFAULT '{}'
);
CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      order_status NOT NULL DEFAULT 'placed',
    total       numeric(12,2) NOT NULL,
    note        text,
    placed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE order_items (
    order_id   bigint REFERENCES orders,
    line       smallint,
    sku        text NOT NULL REFERENCES products ON UPDATE CASCADE,
    quantity   integer NOT NULL,
    unit_price numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE INDEX ON order_items (sku);
"""


class Migration(NamedTuple):
    """Statements that are run while the shop is open, and what they are for people."""

    statements: str
    title: str


MIGRATION = Migration(
    """
ALTER TABLE orders ADD COLUMN channel text NOT NULL DEFAULT 'web';
ALTER TABLE customers RENAME COLUMN joined_at TO customer_since;
CREATE INDEX orders_by_channel ON orders (channel);
""",
    "column added, column renamed, index made",
)

# The same for who reads documents and knows no defaults of the source's.
DOCUMENT_MIGRATION = Migration(
    """
ALTER TABLE orders ADD COLUMN channel text;
ALTER TABLE customers RENAME COLUMN joined_at TO customer_since;
UPDATE orders SET channel = 'phone' WHERE id % 7 = 0;
""",
    "column added and filled for some, column renamed",
)

PRODUCT_COUNT = 40
STOCK_EACH = 1000
PIECES = PRODUCT_COUNT * STOCK_EACH

SUMS = """
SELECT (SELECT coalesce(sum(stock), 0) FROM products)
         + (SELECT coalesce(sum(quantity), 0) FROM order_items) AS pieces,
       (SELECT coalesce(sum(total), 0) FROM orders)
         - (SELECT coalesce(sum(quantity * unit_price), 0) FROM order_items) AS money
"""


def row_counts(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Rows of each table, all in one snapshot; empty while tables are being made."""
    # Locked in this order: orders before customers, as the migration and the writer do. The other way
    # round a picture and a migration that is being delivered were a deadlock now and then.
    tables = TABLES[::-1]
    counts = sql.SQL(", ").join(
        sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier(table)) for table in tables
    )
    try:
        row = connection.execute(sql.SQL("SELECT {}").format(counts)).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.DeadlockDetected):
        return {}  # tables are being made: all of them are locked at once, in another order
    assert row is not None
    return dict(zip(tables, row, strict=True))
