"""The `penstock` command: one file per command, thin: parse, call, print.

Exit codes: 0 done, 1 the work failed, 2 the command line or the file is wrong. Data and JSON go to
stdout, everything else to stderr; an error ends stderr with what was found and what to do.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from penstock import __version__
from penstock.cli.check import check
from penstock.cli.demo import demo
from penstock.cli.init import init
from penstock.cli.run import capture, deliver, run
from penstock.cli.schema import schema
from penstock.cli.snapshot import snapshot
from penstock.cli.status import status
from penstock.cli.sync_sequences import sync_sequences
from penstock.cli.tables import tables
from penstock.cli.teardown import teardown
from penstock.errors import BadValue, PenstockError

app = typer.Typer(
    name="penstock",
    help="Follow Postgres and deliver every change, once, through Spark.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("demo")(demo)
app.command("check")(check)
app.command("init")(init)
app.command("run")(run)
app.command("start", hidden=True)(run)
app.command("snapshot")(snapshot)
app.command("capture")(capture)
app.command("deliver")(deliver)
app.command("status")(status)
app.command("tables")(tables)
app.command("schema")(schema)
app.command("sync-sequences")(sync_sequences)
app.command("teardown")(teardown)
app.command("tear-down", hidden=True)(teardown)


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


# typer brings its own click, whose names differ between versions; this one is public in all.
_UsageError = typer.BadParameter.__base__ or typer.BadParameter


def main() -> None:
    """Run the command line; never a traceback for a user's mistake."""
    # What penstock keeps holds rows and, at times, passwords. Documents get the mode that is asked for.
    os.umask(0o077)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except PenstockError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except (typer.Exit, typer.Abort) as error:
        sys.exit(getattr(error, "exit_code", 0))
    except KeyboardInterrupt:
        sys.exit(0)
    except BrokenPipeError:
        # The reader of our stdout is gone, as with `penstock status | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if not isinstance(error, _UsageError):
            raise
        _print_usage_error(error)
        sys.exit(2)


def _print_usage_error(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else "penstock"
    mistake = BadValue(error.format_message(), command, f"see {command} --help")
    print(mistake, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
