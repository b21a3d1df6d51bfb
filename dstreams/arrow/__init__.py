"""Blocks of records in Arrow columns.

An Arrow block is a ``pyarrow.RecordBatch``. A function of blocks is called once for thousands of
records. pyarrow and numpy are the extra ``dstreams[arrow]``; they are loaded once a program uses
blocks.
"""

from typing import TYPE_CHECKING

from dstreams.common.imports import lazy_names

if TYPE_CHECKING:
    from dstreams.arrow.key_numbers import GroupedValues

__all__ = ["GroupedValues"]

__getattr__, __dir__ = lazy_names(__name__, {"GroupedValues": "dstreams.arrow.key_numbers"})
