"""pyarrow, and what converts from and to it: asked for only where a program uses blocks."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dstreams.errors import EnvironmentNotReadyError


def require(name: str, operation: str) -> ModuleType:
    """Return the library *name*, which the *operation* needs.

    Raises:
        EnvironmentNotReadyError: it is not installed; the message says what to install.
    """
    try:
        return import_module(name)
    except ImportError as error:
        extra = "'dstreams[arrow]'" if name == "pyarrow" else name
        raise EnvironmentNotReadyError(
            f"{operation} needs {name}, which cannot be imported here ({error}); install it where "
            f"the driver and the workers run: pip install {extra}"
        ) from error
