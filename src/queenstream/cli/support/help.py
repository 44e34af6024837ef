"""Help texts: what a command does, then how it is called."""

from __future__ import annotations


def help_text(what: str, *examples: str, more: str = "") -> str:
    r"""A help text; the first sentence is also the one in lists of commands.

    >>> print(help_text("List the queues.", "queen queue ls").replace("\b\n", ""))
    List the queues.
    <BLANKLINE>
    Examples:
      queen queue ls
    """
    parts = [what]
    if more:
        parts.append(more)
    if examples:
        # The mark keeps these lines as they are; everything else is wrapped.
        parts.append("\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)]))
    return "\n\n".join(parts)
