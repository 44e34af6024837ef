"""What is wrong with a pipeline: every problem at once, each with the user's line and what to write instead.

>>> raise PipelineError("orders", (Problem("jobs.py:12", "join", "has no bound in time", "add within='5m'"),))
Traceback (most recent call last):
queenstream.pipeline.errors.PipelineError: the pipeline 'orders' cannot run, 1 problem:
  jobs.py:12: join has no bound in time; add within='5m'
"""

from __future__ import annotations

from dataclasses import dataclass

from queenstream.errors import QueenstreamError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where it stands, in which step, what it is, and what to write instead."""

    where: str
    step: str
    wrong: str
    instead: str

    def __str__(self) -> str:
        return f"{self.where}: {self.step} {self.wrong}; {self.instead}"


class PipelineError(QueenstreamError):
    """A pipeline that cannot run; ``problems`` has all that was found, in the order of the plan."""

    def __init__(self, pipeline: str, problems: tuple[Problem, ...]) -> None:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        lines = [f"the pipeline {pipeline!r} cannot run, {count}:", *(f"  {problem}" for problem in problems)]
        super().__init__("\n".join(lines))
        self.pipeline = pipeline
        self.problems = problems

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, tuple[Problem, ...]]]:
        return PipelineError, (self.pipeline, self.problems)
