"""What an aggregate is: partial columns of rows, merged ones of partial ones, results of these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa

    from dstreams.arrow.groups import Groups


class Aggregate(ABC):
    """What is computed of the rows of each key.

    The types of its partial columns and of its result follow from those of its inputs: they are
    those of what it makes of no rows. It refuses inputs that it cannot use by a TypeError, also
    where there are no rows. What it makes of rows and merges of parts does not depend on how the
    rows are cut into parts, but for the last digits of sums of floats.
    """

    part_names: ClassVar[tuple[str, ...]]
    """Names of its partial columns."""

    is_ordered: ClassVar[bool] = False
    """Whether it counts for it in which order rows came."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The columns that it needs."""

    @abstractmethod
    def partial(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the partial columns, a row for each group, of the rows of its input columns."""

    @abstractmethod
    def merge(self, groups: Groups, parts: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the partial columns, a row for each group, of the rows of partial columns.

        Rows are in the order of the records that they were made of. A row whose parts are null is
        of no records: a state has such rows that was kept before the aggregate was added.
        """

    @abstractmethod
    def result(self, parts: Sequence[pa.Array]) -> pa.Array:
        """Return the result for each row of its partial columns."""
