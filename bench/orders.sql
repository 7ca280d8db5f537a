-- What every database of the benchmark holds, on both sides.

CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer_id int,
    status text,
    total numeric(12, 2),
    note text,
    created_at timestamptz,
    meta jsonb
);

-- The same rows wherever it is called, about 250 bytes each on the wire.
CREATE FUNCTION bench_rows(first_id bigint, last_id bigint) RETURNS SETOF orders
LANGUAGE sql STABLE AS $$
    SELECT
        g,
        (abs(g) % 50000)::int,
        (ARRAY['new', 'paid', 'shipped', 'returned'])[1 + abs(g) % 4],
        ((abs(g) % 1000000) / 100.0)::numeric(12, 2),
        md5(g::text) || md5((g + 1)::text) || md5((g + 2)::text),
        timestamptz '2026-01-01 00:00:00.123456+00' + g * interval '1.000001 second',
        jsonb_build_object('channel', 'web', 'items', abs(g) % 9, 'coupon', NULL)
    FROM generate_series(first_id, last_id) AS g
$$;

CREATE PROCEDURE bench_inserts(last_id bigint, per_transaction int)
LANGUAGE plpgsql AS $$
DECLARE
    done bigint := 0;
BEGIN
    WHILE done < last_id LOOP
        INSERT INTO orders
        SELECT * FROM bench_rows(done + 1, least(done + per_transaction, last_id));
        done := done + per_transaction;
        COMMIT;
    END LOOP;
END
$$;

-- 40% updates, 40% inserts, 20% deletes, ten a transaction; the very last change is an insert.
-- Updates and deletes draw ids until they hit a row that is there.
CREATE PROCEDURE bench_mixed(change_count int, known bigint)
LANGUAGE plpgsql AS $$
DECLARE
    top bigint := known;
    drawn bigint;
    kind text;
    pattern orders;
BEGIN
    PERFORM setseed(0.42);
    SELECT * INTO pattern FROM bench_rows(1, 1);
    FOR n IN 0 .. change_count - 1 LOOP
        kind := substr('udiuiudiui', n % 10 + 1, 1);
        IF kind = 'i' THEN
            top := top + 1;
            INSERT INTO orders VALUES (
                top, top % 50000, pattern.status, pattern.total, pattern.note, pattern.created_at,
                pattern.meta
            );
        ELSE
            LOOP
                drawn := 1 + floor(random() * top)::bigint;
                IF kind = 'u' THEN
                    UPDATE orders
                    SET status = 'changed', total = total + 1, note = reverse(note)
                    WHERE id = drawn;
                ELSE
                    DELETE FROM orders WHERE id = drawn;
                END IF;
                EXIT WHEN FOUND;
            END LOOP;
        END IF;
        IF n % 10 = 9 THEN
            COMMIT;
        END IF;
    END LOOP;
END
$$;

-- Tables like orders, with the same rows in each; one transaction a table, for the locks' sake.
CREATE PROCEDURE bench_tables(schema_name text, table_count int, row_count bigint)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE SCHEMA %I', schema_name);
    FOR n IN 1 .. table_count LOOP
        EXECUTE format('CREATE TABLE %I.orders_%s (LIKE public.orders INCLUDING ALL)', schema_name, n);
        EXECUTE format(
            'INSERT INTO %I.orders_%s SELECT * FROM bench_rows(1, %s)', schema_name, n, row_count
        );
        COMMIT;
    END LOOP;
END
$$;

-- One more row, with this id, in every table of a schema; one transaction.
CREATE PROCEDURE bench_touch(touched_schema text, id bigint)
LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = touched_schema LOOP
        EXECUTE format('INSERT INTO %I.%I SELECT * FROM bench_rows(%s, %s)', touched_schema, name, id, id);
    END LOOP;
END
$$;

-- One update and one insert a transaction, so many a second by the clock, for so long.
CREATE PROCEDURE bench_steady(per_second float8, seconds float8, known bigint)
LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    passed float8 := 0;
    n bigint := 0;
    pattern orders;
BEGIN
    -- Not bench_rows for each: at 150 microseconds a call the writer would be the limit.
    SELECT * INTO pattern FROM bench_rows(1, 1);
    WHILE passed < seconds LOOP
        n := n + 1;
        UPDATE orders SET status = 'changed', customer_id = n WHERE id = 1 + n * 7919 % known;
        INSERT INTO orders VALUES (
            known + n, n % 50000, pattern.status, pattern.total, pattern.note, began, pattern.meta
        );
        COMMIT;
        IF n % 5 = 0 THEN
            passed := extract(epoch FROM clock_timestamp() - began)::float8;
            IF n / per_second - passed > 0.001 THEN
                PERFORM pg_sleep(n / per_second - passed);
            END IF;
        END IF;
    END LOOP;
END
$$;
