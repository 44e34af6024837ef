"""What could not be made a record is kept with its exception, and comes back with it."""

from __future__ import annotations

import pytest

from queenstream.core.schemas import RecordError
from queenstream.engines.spark.tasks.records import (
    decode_failure,
    decode_misfit,
    encode_entrant,
    encode_failure,
)
from queenstream.errors import PayloadInvalid
from queenstream.runtime.failures import Along
from queenstream.runtime.replay import Entrant


class OwnError(Exception):
    """Of a user, and not found by every process."""


ERRORS = [PayloadInvalid("no"), RecordError(("n: no number", "at: no time")), ValueError("x"), KeyError("k")]


@pytest.mark.parametrize("error", ERRORS)
def test_our_errors_and_those_of_python_come_back(error: Exception) -> None:
    record, found = decode_failure(encode_failure({"n": 1}, error))
    assert (record, str(found), type(found).__name__) == ({"n": 1}, str(error), type(error).__name__)
    if not isinstance(error, KeyError):  # whose text is not what it is made of
        assert type(found) is type(error)
    assert getattr(found, "problems", None) == getattr(error, "problems", None)


def test_other_errors_keep_their_name() -> None:
    _, found = decode_failure(encode_failure(None, OwnError("what")))
    assert isinstance(found, PayloadInvalid)
    assert (type(found).__name__, str(found)) == ("OwnError", "what")


@pytest.mark.parametrize("error", [None, PayloadInvalid("no")])
def test_a_letter_that_comes_back(error: Exception | None) -> None:
    entrant = Entrant("parse", {"n": 1}, Along(5, ("a", 1), 1), error)
    found = decode_misfit(encode_entrant(entrant))
    assert isinstance(found, Entrant)
    assert found[:3] == entrant[:3]
    assert repr(found.error) == repr(error)
