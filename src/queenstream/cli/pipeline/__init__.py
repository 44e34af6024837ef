"""``queen pipeline``: run, check, show and test pipelines, and look at what they remember."""

from __future__ import annotations

import typer

from queenstream.cli.pipeline import describe, dlq, maintenance, run, runs, state, test
from queenstream.cli.support.help import help_text

app = typer.Typer(
    help=help_text(
        "Pipelines: run, look into them, mend dead letters.",
        "queen pipeline run jobs.py --engine local",
        "queen pipeline run jobs.py --engine local --checkpoint state/ --watch",
        "queen pipeline validate jobs.py",
        "queen pipeline status totals",
        "queen pipeline state get ann --checkpoint state/",
        "queen pipeline dlq ls failed-events",
    ),
    no_args_is_help=True,
)
app.command("run", help=run.HELP)(run.run)
app.command("validate", help=describe.VALIDATE)(describe.validate)
app.command("describe", help=describe.DESCRIBE)(describe.describe)
app.command("test", help=test.HELP)(test.check)
app.command("ls", help=runs.LS)(runs.ls)
app.command("status", help=runs.STATUS)(runs.status)
app.command("check", help=maintenance.CHECK)(maintenance.check)
app.command("rescale", help=maintenance.RESCALE)(maintenance.rescale)
app.command("savepoint", help=maintenance.SAVEPOINT)(maintenance.savepoint)
app.add_typer(state.state_app, name="state")
app.add_typer(state.checkpoints_app, name="checkpoints")
app.add_typer(dlq.app, name="dlq")
