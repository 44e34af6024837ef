"""``queen pipeline``: run, check, show and test pipelines, and look at what they remember."""

from __future__ import annotations

import typer

from queenstream.cli.helping import help_text
from queenstream.cli.pipeline import letters, looking, maintenance, reported, run, stored, trying

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
app.command("validate", help=looking.VALIDATE)(looking.validate)
app.command("describe", help=looking.DESCRIBE)(looking.describe)
app.command("test", help=trying.HELP)(trying.check)
app.command("ls", help=reported.LS)(reported.ls)
app.command("status", help=reported.STATUS)(reported.status)
app.command("check", help=maintenance.CHECK)(maintenance.check)
app.command("rescale", help=maintenance.RESCALE)(maintenance.rescale)
app.command("savepoint", help=maintenance.SAVEPOINT)(maintenance.savepoint)
app.add_typer(stored.state_app, name="state")
app.add_typer(stored.checkpoints_app, name="checkpoints")
app.add_typer(letters.app, name="dlq")
