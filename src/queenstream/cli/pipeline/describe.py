"""``queen pipeline validate`` and ``describe``: what a pipeline is, without running it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.pipeline.finder import Loader, choose, whole_ones
from queenstream.cli.pipeline.options import PipelineFile, refused_with_code
from queenstream.cli.support.exit_codes import USAGE
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Output, Printer, amount, note, quiet_pipe, visible, write

if TYPE_CHECKING:
    from queenstream.pipeline.builder import Pipeline

VALIDATE = help_text(
    "Check the pipelines of a file, and say all that is wrong.",
    "queen pipeline validate jobs.py",
    "queen pipeline validate jobs.py:totals",
    "queen pipeline validate shop.jobs | jq .problems",
    more="Nothing is opened and nothing runs. Without a name every pipeline of the file is checked.",
)
DESCRIBE = help_text(
    "Show the plan of a pipeline: as text, JSON or a picture.",
    "queen pipeline describe jobs.py",
    "queen pipeline describe jobs.py:totals --format json | jq '.nodes[].name'",
    "queen pipeline describe jobs.py --format svg > totals.svg",
)


class Form(StrEnum):
    """How a plan is shown."""

    TEXT = "text"
    JSON = "json"
    SVG = "svg"


def validate(target: PipelineFile, output: Output = None) -> None:
    """Check pipelines."""
    out = Printer(output)
    with quiet_pipe(), refused_with_code():
        checked = [_checked(pipeline) for pipeline in _meant(Loader(target))]
        for one in checked:
            if not out.for_people:
                out.line(one, ())
            elif one["valid"]:
                write(f"{visible(one['pipeline'])} is fine: {one['summary']}\n")
                for told in one.get("notes", ()):
                    note(f"{one['pipeline']}: {told}")
            else:
                for problem in one["problems"]:
                    note(f"{one['pipeline']}: {problem['message']}")
    if not all(one["valid"] for one in checked):
        raise typer.Exit(USAGE)


def describe(
    target: PipelineFile,
    form: Annotated[
        Form, typer.Option("--format", help="For people, for programs, or a picture.")
    ] = Form.TEXT,
) -> None:
    """Show a plan."""
    with quiet_pipe(), refused_with_code():
        write(Loader(target).load().describe(form.value))


def _meant(loader: Loader) -> list[Pipeline[Any]]:
    """The named one, or all; beginnings that others go on from are no pipelines of their own."""
    found = loader.load_all()
    if loader.target.name is not None or not found:
        return [choose(found, loader.target)]
    return list(whole_ones(found).values())


def _checked(pipeline: Pipeline[Any]) -> dict[str, Any]:
    from queenstream.pipeline.errors import PipelineError
    from queenstream.pipeline.plan.describe import notes_of

    try:
        plan = pipeline.plan()
    except PipelineError as error:
        problems = [
            {
                "where": each.where,
                "step": each.step,
                "wrong": each.wrong,
                "instead": each.instead,
                "message": str(each),
            }
            for each in error.problems
        ]
        return {"pipeline": pipeline.name, "valid": False, "problems": problems}
    notes = notes_of(plan)
    counts = (amount(len(plan.nodes), "step"), amount(len(plan.inputs), "source"))
    return {
        "pipeline": plan.name,
        "valid": True,
        "problems": [],
        "fingerprint": plan.fingerprint,
        "bounded": plan.bounded,
        "summary": f"{', '.join(counts)}, {amount(len(plan.sinks), 'sink')}",
        **({"notes": notes} if notes else {}),
    }
