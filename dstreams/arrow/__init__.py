"""Records in Arrow blocks: many of them at once, a column for each field.

An Arrow block is a ``pyarrow.RecordBatch``. A function that takes whole blocks is called once for
some thousands of records, where one that takes records is called for each. pyarrow and numpy are
the extra ``dstreams[arrow]``; nothing of them is loaded before a program uses blocks.
"""

from typing import TYPE_CHECKING

from dstreams.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from dstreams.arrow.grouping import GroupedValues

__all__ = ["GroupedValues"]

__getattr__, __dir__ = lazy_names(__name__, {"GroupedValues": "dstreams.arrow.grouping"})
