"""Functions that give tokens (``oauth_cb``), and what a pickle of them would have with it.

A checkpoint has the functions of a program, with the variables that they use. A function whose
variables are secret by their names is therefore left out of it, as a password is.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

from pyspark import cloudpickle

from dstreams.common.callables import captured
from dstreams.common.redaction import USER_IN_URL, secret_settings

_is_secret_name = secret_settings({})
_URL = re.compile(r"\w+://\S*")
_ANNOTATIONS = "__annotations__"


def secret_of(func: Callable[..., Any]) -> str | None:
    """Return the name of a secret that pickling a function would write; None for none.

    Text counts, by the name of the variable, parameter, attribute or key that has it. What stands
    in the code of the function has no name.
    """
    search = _Search()
    with suppress(Exception):  # what cannot be pickled is refused, by name, with the whole graph
        search.dump(func)  # type: ignore[no-untyped-call]
    return search.found


class _Search(cloudpickle.Pickler):
    """Looks at all that is pickled; ``found`` is the name of the first secret."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())  # type: ignore[no-untyped-call]
        self.found: str | None = None
        self._annotations: list[object] = []  # their texts are types

    def persistent_id(self, value: object) -> None:
        for name, item in self._named(value):
            if _is_secret(name, item):
                self.found = self.found or name

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)  # type: ignore[no-untyped-call]
        if isinstance(value, FunctionType) and reduced is not NotImplemented:  # not by its name
            self.persistent_id(dict(captured(value)))
        return reduced

    def _named(self, value: object) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict) and not any(value is one for one in self._annotations):
            self._annotations.append(value.get(_ANNOTATIONS))
            yield from ((_text(key), item) for key, item in value.items())
        elif isinstance(value, functools.partial):
            with suppress(TypeError, ValueError):  # builtins publish no parameters
                yield from zip(inspect.signature(value.func).parameters, value.args, strict=False)


def _is_secret(name: str, value: object) -> bool:
    if value is os.environ:
        return True
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_is_secret(name, item) for item in value)
    if not isinstance(value, (str, bytes)) or not value:
        return False
    text = _text(value)
    named = _is_secret_name(name, "") and not _URL.fullmatch(text)
    return named or USER_IN_URL.search(text) is not None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
