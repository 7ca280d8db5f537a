"""penstock check: every finding at once, each with what mends it. Changes nothing."""

from __future__ import annotations

import json
import sys

import typer

from penstock.cli.options import AsJson, PipelinePath
from penstock.config import PipelineFile, read_pipeline
from penstock.errors import JavaMissing, PenstockError
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.preflight import check_target
from penstock.source.preflight import Finding, preflight


def check(path: PipelinePath, as_json: AsJson = False) -> None:
    """See whether the pipeline could run: servers, privileges, tables, Java. Changes nothing."""
    pipeline = read_pipeline(path)
    findings = find(pipeline)
    errors = [finding for finding in findings if finding.severity == "error"]
    if as_json:
        typer.echo(
            json.dumps(
                [
                    {
                        "severity": finding.severity,
                        "code": finding.code,
                        "place": finding.place,
                        "what": finding.what,
                        "do": finding.do,
                    }
                    for finding in findings
                ]
            )
        )
    else:
        for finding in sorted(findings, key=lambda each: each.severity, reverse=True):
            print(f"{finding.severity}: {finding.error}", file=sys.stderr)  # noqa: T201
        typer.echo(_verdict(pipeline, len(errors), len(findings) - len(errors)))
    if errors:
        raise typer.Exit(1)


def find(pipeline: PipelineFile) -> list[Finding]:
    """Every finding about source, sinks and this machine."""
    findings = preflight(pipeline.source.url, pipeline.source.tables, pipeline.name)
    for options in pipeline.sinks.values():
        if isinstance(options, PostgresOptions):
            findings += [Finding(fault) for fault in check_target(options.url)]
    findings += [Finding(fault) for fault in _machine_faults()]
    return findings


def _machine_faults() -> list[PenstockError]:
    from penstock.embedded.java import java_home

    try:
        java_home()
    except JavaMissing as error:
        return [error]
    return []


def _verdict(pipeline: PipelineFile, error_count: int, warning_count: int) -> str:
    if error_count:
        return (
            f"{pipeline.name}: {error_count} to mend before it can run, warnings: {warning_count}"
        )
    return f"{pipeline.name}: ready to run, warnings: {warning_count}"
