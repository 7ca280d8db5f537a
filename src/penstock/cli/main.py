"""The `penstock` command: one file per command, thin: parse, call, print.

Exit codes: 0 done, 1 the work failed, 2 the command line or the file is wrong. Data and JSON go to
stdout, everything else to stderr; an error ends stderr with what was found and what to do.
"""

from __future__ import annotations

import os
import sys

import click
import typer

from penstock import __version__
from penstock.cli import check, demo, init, run, status, teardown
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Follow Postgres and deliver every change, once, through Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("demo")(demo.demo)
app.command("check")(check.check)
app.command("init")(init.init)
app.command("run")(run.run)
app.command("start", hidden=True)(run.run)
app.command("capture")(run.capture)
app.command("deliver")(run.deliver)
app.command("status")(status.status)
app.command("teardown")(teardown.teardown)
app.command("tear-down", hidden=True)(teardown.teardown)


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line; never a traceback for a user's mistake."""
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except PenstockError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "penstock"
        print(f"PEN-103 {command}: {error.format_message()}", file=sys.stderr)  # noqa: T201
        print(f"  Do: see {command} --help", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(0)
    except BrokenPipeError:
        # The reader of our stdout is gone, as with `penstock status | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
