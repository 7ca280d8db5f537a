"""The `penstock` command: one file per command, thin: parse, call, print.

Exit codes: 0 done, 1 the work failed, 2 the command line or the file is wrong. Data and JSON go to
stdout, everything else to stderr; an error ends stderr with what was found and what to do.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from penstock import __version__
from penstock.cli.check import check
from penstock.cli.demo import demo
from penstock.cli.init import init
from penstock.cli.modifiers import modifiers
from penstock.cli.parked import parked
from penstock.cli.run import capture, deliver, run
from penstock.cli.schema import schema
from penstock.cli.sinks import sinks
from penstock.cli.snapshot import snapshot
from penstock.cli.status import status
from penstock.cli.sync_sequences import sync_sequences
from penstock.cli.tables import tables
from penstock.cli.teardown import teardown
from penstock.cli.webhooks import webhooks
from penstock.errors import BadValue, OutputRefused, PenstockError

app = typer.Typer(
    name="penstock",
    help="Follow Postgres and deliver every change, once, through Spark.",
    epilog="New here: penstock demo shows all of it. Then write a pipeline file, and penstock check"
    " says what is missing. penstock COMMAND --help has the options of each.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# The second text is for the list of commands, where a sentence of --help would be cut.
app.command("demo", short_help="two servers, a pipeline, a proof; removed again")(demo)
app.command("check", short_help="what is missing before it can run; changes nothing")(check)
app.command("init", short_help="create slot, publications, target objects")(init)
app.command("run", short_help="init if needed, copy, then stream until Ctrl-C")(run)
app.command("start", hidden=True)(run)
app.command("snapshot", short_help="copy tables, let them catch up, and end")(snapshot)
app.command("capture", short_help="the left half of run: source to log")(capture)
app.command("deliver", short_help="the right half of run: log to sinks")(deliver)
app.command("status", short_help="positions, lag, each table's state and error")(status)
app.command("tables", short_help="list, add, remove, or copy tables again (resync)")(tables)
app.command("modifiers", short_help="preview: rows before and after the file's rules")(modifiers)
app.command("parked", short_help="list, retry or drop what a sink refused")(parked)
app.command("sinks", short_help="list, pause or resume sinks")(sinks)
app.command("webhooks", short_help="who has subscribed: list, test, resume, remove, serve")(
    webhooks
)
app.command("schema", short_help="versions of the source's schemas")(schema)
app.command("sync-sequences", short_help="set the target's sequences, to cut over")(sync_sequences)
app.command("teardown", short_help="remove what penstock made; your tables stay")(teardown)
app.command("tear-down", hidden=True)(teardown)


@app.command("version", short_help="print the version")
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


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
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if not _stdout_fails():
            raise
        _drop_output()
        what = f"cannot write what is printed: {error.strerror}"
        refused = OutputRefused(what, "stdout", "free space, or let it print elsewhere")
        print(refused, file=sys.stderr)  # noqa: T201
        sys.exit(refused.exit_code)
    except Exception as error:
        if not isinstance(error, _UsageError):
            raise
        _print_usage_error(error)
        sys.exit(2)


def _stdout_fails() -> bool:
    try:
        sys.stdout.write("\n")  # what has failed is no longer in the buffer
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Else Python would try again to write it, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_usage_error(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else "penstock"
    # As pydantic words what is wrong with one of several words.
    message = error.format_message().replace("Value error, ", "")
    mistake = BadValue(message, command, f"see {command} --help")
    print(mistake, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
