"""A writer that keeps the shop busy. Knows nothing of penstock."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from penstock.demo.shop import PRODUCT_COUNT, STOCK_EACH

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_CUSTOMER_COUNT = 100
# Some 80 transactions a second: enough to see things move, and two cores stay free for the rest.
PAUSE_SECONDS = 0.01
# Some 25, for a destination that is asked once for each change.
LONG_PAUSE_SECONDS = 0.04
_NOTES = (
    None,
    "leave it with the neighbour",
    "gift: wrap it, please\nno invoice inside",
    "Grüße ✉",
)


class Writer:
    """Customers, orders, payments, returns: one transaction after another until stopped.

    Counts what it commits, so that what arrives can be counted against it.
    """

    def __init__(self, url: str, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pause_seconds = pause_seconds
        self.change_count = 0
        self.transaction_count = 0
        self.rolled_back_count = 0
        self.key_change_count = 0
        self._connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._pending = 0
        self._customers: list[int] = []
        self._orders: list[int] = []
        self._skus = [f"P-{number:03d}" for number in range(PRODUCT_COUNT)]
        self._random = random.Random(7)  # noqa: S311 - the same shop each time
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="demo writer", daemon=True)

    def start(self) -> None:
        """Open the shop in one transaction, then go on in a thread."""
        self._commit(self._open_shop)
        self._thread.start()

    def stop(self) -> None:
        """Finish the transaction under way and close. Safe to repeat."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._connection.close()

    def raise_if_failed(self) -> None:
        """Raise what ended the writer."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        rota: dict[Callable[[], None], int] = {
            self._order: 40,
            self._promote: 20,
            self._transfer: 10,
            self._join: 8,
            self._prefer: 8,
            self._return: 8,
            self._reprice: 2,
            self._rename: 2,
        }
        actions, weights = list(rota), list(rota.values())
        try:
            while not self._stop.wait(self._pause_seconds):
                self._commit(self._random.choices(actions, weights)[0])
                if self.transaction_count % 50 == 0:
                    self._roll_back(self._place_order)
        except psycopg.Error as error:
            self._failure = error

    def _commit(self, action: Callable[[], None]) -> None:
        self._pending = 0
        with self._connection.transaction():
            action()
        self.transaction_count += 1
        self.change_count += self._pending

    def _roll_back(self, action: Callable[[], object]) -> None:
        with self._connection.transaction(force_rollback=True):
            action()
        self.rolled_back_count += 1

    def _do(self, statement: str, *values: object) -> psycopg.Cursor[Any]:
        done = self._connection.execute(statement.encode(), values)
        self._pending += done.rowcount
        return done

    def _open_shop(self) -> None:
        for sku in self._skus:
            title, price = f"Product {sku}", self._random.randrange(100, 20000) / 100
            insert = "INSERT INTO products (sku, title, price, stock) VALUES (%s, %s, %s, %s)"
            self._do(insert, sku, title, price, STOCK_EACH)
        for _ in range(_FIRST_CUSTOMER_COUNT):
            self._join()

    def _join(self) -> None:
        email = f"customer{len(self._customers)}@example.org"
        made = self._do("INSERT INTO customers (email) VALUES (%s) RETURNING id", email)
        self._customers.append(_one(made))

    def _prefer(self) -> None:
        wish = Jsonb({"news": self._random.random() < 0.5, "sizes": ["M", None], "score": 1.50})
        customer = self._random.choice(self._customers)
        self._do("UPDATE customers SET preferences = %s WHERE id = %s", wish, customer)

    def _order(self) -> None:
        self._orders.append(self._place_order())

    def _place_order(self) -> int:
        """Three tables in one transaction: the order, its items, and the stock they come from."""
        customer, note = self._random.choice(self._customers), self._random.choice(_NOTES)
        order = _one(
            self._do(
                "INSERT INTO orders (customer_id, total, note) VALUES (%s, 0, %s) RETURNING id",
                customer,
                note,
            )
        )
        for line, sku in enumerate(self._random.sample(self._skus, self._random.randint(1, 4))):
            quantity = self._random.randint(1, 3)
            take = "UPDATE products SET stock = stock - %s WHERE sku = %s RETURNING price"
            price = _one(self._do(take, quantity, sku))
            item = "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s)"
            self._do(item, order, line, sku, quantity, price)
            self._do("UPDATE orders SET total = total + %s WHERE id = %s", quantity * price, order)
        return int(order)

    def _promote(self) -> None:
        if self._orders:
            step = "CASE status WHEN 'placed' THEN 'paid' ELSE 'shipped' END"
            order = self._random.choice(self._orders)
            self._do(f"UPDATE orders SET status = ({step})::order_status WHERE id = %s", order)

    def _return(self) -> None:
        """The pieces go back into stock, the order and its items are deleted."""
        if self._orders:
            order = self._orders.pop(self._random.randrange(len(self._orders)))
            back = "UPDATE products p SET stock = stock + quantity FROM order_items i"
            self._do(f"{back} WHERE i.sku = p.sku AND order_id = %s", order)
            self._do("DELETE FROM order_items WHERE order_id = %s", order)
            self._do("DELETE FROM orders WHERE id = %s", order)

    def _transfer(self) -> None:
        """Repack pieces of one product as another: two updates that mean nothing one by one."""
        here, there = self._random.sample(self._skus, 2)
        moved = self._random.randint(1, 20)
        self._do("UPDATE products SET stock = stock - %s WHERE sku = %s", moved, here)
        self._do("UPDATE products SET stock = stock + %s WHERE sku = %s", moved, there)

    def _reprice(self) -> None:
        tags = self._random.sample(["new", "sale", 'it\'s "hot"', "a,b", "ünïcode"], 2)
        change = "UPDATE products SET price = round(price * 1.01, 2), tags = %s WHERE sku = %s"
        self._do(change, tags, self._random.choice(self._skus))

    def _rename(self) -> None:
        """Give a product another key; Postgres passes it on to the items."""
        place = self._random.randrange(len(self._skus))
        before, after = self._skus[place], f"P-{PRODUCT_COUNT + self.key_change_count:03d}"
        items = self._connection.execute(
            "SELECT count(*) FROM order_items WHERE sku = %s", (before,)
        )
        self._do("UPDATE products SET sku = %s WHERE sku = %s", after, before)
        self._pending += _one(items)
        self._skus[place] = after
        self.key_change_count += 1


def _one(found: psycopg.Cursor[Any]) -> Any:
    row = found.fetchone()
    assert row is not None
    return row[0]
