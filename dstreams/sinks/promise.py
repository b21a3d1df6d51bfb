"""What an output promises: how often a batch is in it, and under which condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Guarantee = Literal["exactly once", "at least once", "at most once"]


@dataclass(frozen=True)
class DeliveryGuarantee:
    """How often a batch is in an output, whatever dies on the way; *condition* says when."""

    guarantee: Guarantee
    condition: str


AT_LEAST_ONCE = DeliveryGuarantee(
    "at least once", "a batch that a crash cut off is put out again, with the same records"
)

WITHOUT_CHECKPOINT = DeliveryGuarantee(
    "at most once",
    "there is no checkpoint directory: no batch runs twice, and what the end of the driver cuts "
    "off is lost",
)
