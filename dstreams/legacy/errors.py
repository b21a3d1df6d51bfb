"""Errors of programs of Spark 2.4, which are also those that they caught then."""

from __future__ import annotations

from dstreams import InvalidStreamError


class WrongTypeError(InvalidStreamError, TypeError):
    """A parameter is of a type that it cannot be of."""
