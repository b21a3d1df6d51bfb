"""What a codec of values is: how they become bytes, and values again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from checkpoint.errors import CheckpointError
from checkpoint.state_store.classes import Classes
from checkpoint.state_store.shapes import Shapes

MAX_VALUE_BYTES = 32 << 20
Encoder = Callable[[Any], bytes]
ManyEncoder = Callable[[list[Any]], list[bytes]]
Decoder = Callable[[bytes], Any]
ManyDecoder = Callable[[list[bytes]], list[Any]]
Step = Callable[[Any, Any], Any]
Stepper = Callable[[list[Any], list["bytes | None"], Step], list["bytes | None"]]


class UndecodableValueError(CheckpointError, ValueError):
    """Bytes that are no value of the codec that reads them."""


class ValueCodec(Protocol):
    """How values become bytes. Values of this type are small and can be pickled.

    The shapes that its methods take are those of the content: an encoder adds to them what is to be
    stored beside its records.
    """

    @property
    def name(self) -> str:
        """Name of the codec on disk."""
        ...

    @property
    def classes(self) -> Classes:
        """The classes whose instances may be made."""
        ...

    def encoder(self, shapes: Shapes) -> Encoder:
        """Return a function for one writer; it raises ``TypeError`` for what it cannot encode.

        Its bytes end with a dot and never change with what the caller does to the value later.
        """
        ...

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the function that makes a value, new at each call, and ignores what follows it.

        It raises :class:`UndecodableValueError` for what no encoder wrote, and
        :class:`StoredClassError` for an instance of a class that is gone or has changed.
        """
        ...

    def many_encoder(self, shapes: Shapes) -> ManyEncoder:
        """Return a function for one writer that does what the encoder does for many."""
        ...

    def many_decoder(self, shapes: Shapes) -> ManyDecoder:
        """Return the function that does what the decoder does for many, in less time."""
        ...

    def stepper(self, shapes: Shapes) -> Stepper:
        """Return a function for one writer that decodes, steps and encodes many values.

        It takes what is given for each key, the records before, and the step; it returns encoded
        values, whatever later steps do to what an earlier one returned. None stands for no value,
        before and after.
        """
        ...


def undecodable(record: bytes, error: Exception) -> UndecodableValueError:
    """Return what to raise for a record that cannot be read."""
    return UndecodableValueError(
        f"a record of {len(record)} bytes holds no value of this codec: {error}; read it with the "
        "codec that wrote it"
    )
