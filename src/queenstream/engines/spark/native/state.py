"""Which columns Spark keeps in the state of a plan without Python.

Spark's optimizer drops what nobody reads, so a change before or behind a join or a window may change what its
state has, and in which order. Spark itself compares the types with those of the checkpoint, but no names: two
fields of one type would change places without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

_NUMBERED = re.compile(r"_gen_alias_\d+")


def state_columns(rows: DataFrame) -> list[str]:
    """The columns of each operator with state, by name and type, in the rows of a query.

    >>> state_columns(windows)  # doctest: +SKIP
    ['struct<start:timestamp,end:timestamp>, string, value_0: struct<count:bigint>']
    """
    of_java: Any = rows
    analyzed = of_java._jdf.queryExecution().analyzed()
    optimized = of_java.sparkSession._jsparkSession.sessionState().optimizer().execute(analyzed)
    names = {
        number: column.name()
        for plan in _named(analyzed, "Aggregate")
        for column in _elements(plan.aggregateExpressions())
        for number, _ in _functions(column)
    }
    found = [_of_aggregate(plan, names) for plan in _named(optimized, "Aggregate")]
    found += [
        side.schema().simpleString()
        for plan in _named(optimized, "Join")
        for side in (plan.left(), plan.right())
    ]
    return [_NUMBERED.sub("_gen_alias", each) for each in found]


def _of_aggregate(plan: Any, names: dict[int, str]) -> str:
    """The types of its keys, and what each of its functions keeps, by the column that the function is for."""
    columns = [each.dataType().simpleString() for each in _elements(plan.groupingExpressions())]
    for column in _elements(plan.aggregateExpressions()):
        for number, function in _functions(column):
            columns.append(f"{names.get(number, '')}: {function.aggBufferSchema().simpleString()}")
    return ", ".join(dict.fromkeys(columns))


def _functions(expression: Any) -> Iterator[tuple[int, Any]]:
    """The aggregate functions in an expression, each with its number in the query."""
    if expression.nodeName() == "AggregateExpression":
        yield expression.resultId().id(), expression.aggregateFunction()
        return
    for each in _elements(expression.children()):
        yield from _functions(each)


def _named(plan: Any, name: str) -> Iterator[Any]:
    if plan.nodeName() == name:
        yield plan
    for each in _elements(plan.children()):
        yield from _named(each, name)


def _elements(found: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala."""
    return (found.apply(index) for index in range(found.size()))
