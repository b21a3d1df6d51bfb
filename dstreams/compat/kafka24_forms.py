"""One name for two forms of a call: that of Scala's integration, and that of Spark 2.4's Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

_Call = TypeVar("_Call", bound=Callable[..., Any])


def or_as_in_2_4(
    call_of_2_4: Callable[..., Any], kinds: tuple[type, ...]
) -> Callable[[_Call], _Call]:
    """Let a function of Scala's form take the calls of Spark 2.4 as well.

    A call is of Scala's form where one of its arguments is of *kinds*, or has a name that 2.4 does
    not know; so a program of 2.4 may name its arguments or not.

    Args:
        call_of_2_4: takes the calls of 2.4.
        kinds: of arguments that 2.4 did not have.
    """
    names_of_2_4 = set(inspect.signature(call_of_2_4).parameters)

    def decorate(call: _Call) -> _Call:
        @wraps(call)
        def called(*arguments: Any, **named: Any) -> Any:
            is_of_scala = not names_of_2_4.issuperset(named) or any(
                isinstance(one, kinds) for one in (*arguments, *named.values())
            )
            return (call if is_of_scala else call_of_2_4)(*arguments, **named)

        return called  # type: ignore[return-value]

    return decorate
