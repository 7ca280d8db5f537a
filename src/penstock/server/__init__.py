"""The HTTP server inside a run: health, status, metrics, the admin API and the page.

    watched      what is watched, as the server sees it: a snapshot in memory, and actions
    access       who may do what: token, Host, Origin, size of a body
    problems     what stands still and what to do about it; whether all is ready
    view         a snapshot as the page is shown it, and what has changed since the last one
    last_hour    lag and throughput of the last hour
    telemetry    what is counted: `scraped` for Prometheus, `pushed` and `tracing` for OTLP
    app          the routes
    connection   time limits of one connection
    serve        the thread that serves them

It never asks a server of the user's for a status: a thread of the run keeps the last one in memory
(`penstock.run.watched`). Needs the extra `penstock[server]`; nothing outside this package imports what that brings.
"""
