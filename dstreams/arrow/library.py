"""Optional libraries, imported on use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dstreams.errors import EnvironmentNotReadyError


def require(name: str, operation: str) -> ModuleType:
    """Import and return the library *name* for an operation.

    Raises:
        EnvironmentNotReadyError: it is not installed; the message has the command to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        extra = "'dstreams[arrow]'" if name == "pyarrow" else name
        raise EnvironmentNotReadyError(
            f"{operation} needs {name}, which cannot be imported here ({error}); install it where "
            f"the driver and the workers run: pip install {extra}"
        ) from error
