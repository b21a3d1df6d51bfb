"""Pickles and stored values for tools: shown without running anything that the bytes name.

A class outside the short list of :mod:`checkpoint.state_store.plain_pickles` becomes an
:class:`Opaque`, which records what the pickle gives it. Before a pickle is loaded,
:func:`require_bounded` rejects one that would take far more memory or time than its size: a tuple
that holds another one twice, and so on, has exponentially many parts.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from checkpoint.state_store import Classes, DataValues
from checkpoint.state_store.classes import Maker, Schema, schema_of_id
from checkpoint.state_store.plain_pickles import PlainUnpickler
from checkpoint.state_store.shapes import SHAPE, Shapes, head_of, shape_reader
from checkpoint.state_store.values import Decoder, UndecodableValueError, ValueCodec

_MOST_REPEATED, _REPEATED_PER_BYTE = 1_000_000, 10
_MOST_BITS = 1 << 20  # of the ints of a fraction
_TOO_MANY = "it has too many parts, most of them repeated"
_SHAPE = bytes((SHAPE,))


class Instance:
    """The stored fields of an instance, or of a member of an enum."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any] | list[Any]) -> None:
        self.name = name
        self.fields = fields

    @classmethod
    def of(cls, schema: Schema, values: tuple[Any, ...]) -> Instance:
        """Return an instance of a schema. Raises ValueError."""
        names = (*schema.fields, *schema.others)
        if not names or len(set(names)) < len(names):  # a Row may repeat names
            return cls(schema.full_name, list(values))
        return cls(schema.full_name, dict(zip(names, values, strict=True)))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields.values() if isinstance(self.fields, dict) else self.fields)

    def __repr__(self) -> str:
        if isinstance(self.fields, dict):
            return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.fields.items())})"
        return f"{self.name}({', '.join(map(repr, self.fields))})"


class ShownClasses(Classes):
    """Makes an :class:`Instance` instead of an instance of a class."""

    def maker(self, schema: Schema) -> Maker:
        def make(*values: Any) -> Instance:
            return Instance.of(schema, values)

        return Maker(make, lambda columns: list(map(make, *columns)))

    def key_member(self, module: str, name: str, member: Any) -> Instance:
        return Instance(f"{module}.{name}", {"name": member})

    def key_instance(self, module: str, name: str, values: list[Any]) -> Instance:
        return Instance(f"{module}.{name}", values)


class Opaque:
    """An object of a class that is not loaded: its name, and what its pickle says about it."""

    name = "?"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._take(*arguments, **named)

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Create an object with the arguments that the pickle passes."""
        made = super().__new__(cls)
        made._take(*arguments, **named)
        return made

    def _take(self, *arguments: Any, **named: Any) -> None:
        if arguments or named or "arguments" not in vars(self):
            vars(self).update(arguments=arguments, named=named, state=None, items=[])

    def __setstate__(self, state: Any) -> None:
        vars(self)["state"] = state

    def append(self, item: Any) -> None:
        """Add an item, as for a subclass of list."""
        vars(self)["items"].append(item)

    def extend(self, items: Any) -> None:
        """Add items, as for a subclass of list."""
        vars(self)["items"].extend(items)

    def add(self, item: Any) -> None:
        """Add an item, as for a subclass of set."""
        self.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.append((key, value))

    def __call__(self, *arguments: Any, **named: Any) -> Opaque:
        """Return a record of a call that is not made."""
        made = Opaque(*arguments)
        vars(made)["named"] = named
        return made


class TooManyPartsError(ValueError):
    """A value has more parts than the limit."""


class Parts:
    """Counts the parts of values; a shared part counts each time it is reached."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, count: int = 1) -> None:
        """Count some parts. Raises TooManyPartsError."""
        self._left -= count
        if self._left < 0:
            raise TooManyPartsError(_TOO_MANY)

    def take_all(self, values: Iterable[Any]) -> None:
        """Count *values* and everything in them. Raises TooManyPartsError."""
        todo = [iter(values)]
        while todo:
            for value in todo[-1]:
                self.take()
                if isinstance(value, dict):
                    todo += [iter(value.values()), iter(value)]
                    break
                if isinstance(value, (tuple, list, set, frozenset, deque, Instance)):
                    todo.append(iter(value))
                    break
            else:
                todo.pop()


def require_bounded(data: bytes) -> None:
    """Raise ValueError if loading *data* could take far more memory or time than its size.

    Without memo references an object is a tree, and loading takes linear time. So every reference
    is charged with the number of parts that it repeats.
    """
    repeated = Parts(_MOST_REPEATED + _REPEATED_PER_BYTE * len(data))
    stack: list[list[int]] = []  # the number of parts of each object; shared like the object
    marks: list[int] = []
    memo: dict[int, list[int]] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name.startswith("EXT"):
            raise ValueError(f"it names a class only by the number {argument}")
        if name == "MEMOIZE" or "PUT" in name:
            place = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if not 0 <= place <= len(data):
                raise ValueError(f"it refers to object {place}, more than it has room for")
            memo[place] = stack[-1]
        elif "GET" in name or name == "DUP":
            parts = stack[-1] if name == "DUP" else memo[int(argument or 0)]
            repeated.take(parts[0])
            stack.append(parts)
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        else:
            before = opcode.stack_before
            count = len(before)
            if pickletools.markobject in before:
                count = before.index(pickletools.markobject) + len(stack) - marks.pop()
            start = len(stack) - count
            if start < 0:
                raise ValueError("it takes more objects than it has made")
            taken = stack[start:]
            del stack[start:]
            size = sum(parts[0] for parts in taken)
            if name in _CHANGING:
                taken[0][0] = size
                stack.append(taken[0])
            else:
                stack += [[1 + size] for _ in opcode.stack_after]


_CHANGING = frozenset(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"))


class _ShowingUnpickler(PlainUnpickler):
    """Reads plain data; other classes become Opaque, and instances become Instance."""

    def other_class(self, module: str, name: str) -> Any:
        return type("Opaque", (Opaque,), {"name": f"{module}.{name}"})

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _bounded(found) if name == "_fraction" else found

    def instance(self, text: str, values: tuple[Any, ...]) -> Instance:
        return Instance.of(schema_of_id(text), values)


def _bounded(fraction: Any) -> Any:
    """Return *fraction* with a limit: reducing a fraction of large ints takes very long."""

    def make(numerator: Any, denominator: Any) -> Fraction:
        for number in (numerator, denominator):
            if type(number) is int and number.bit_length() > _MOST_BITS:
                raise ValueError("it has a fraction of more than a million bits")
        return fraction(numerator, denominator)  # type: ignore[no-any-return]

    return make


def plain_loads(data: bytes) -> Any:
    """Read a pickle without running anything that it names. Raises ValueError."""
    try:
        require_bounded(data)
        return _ShowingUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(f"it cannot be shown without unpickling it: {error}") from error


class ShownData(DataValues):
    """Decodes stored data for display, without creating instances."""

    many_decoder = ValueCodec.many_decoder

    def __init__(self) -> None:
        super().__init__(ShownClasses())

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the decoder of one value."""
        decode_other = super().decoder(shapes)

        def decode(record: bytes) -> Any:
            try:
                if record[:1] == _SHAPE:
                    head = head_of(record)
                    make = shape_reader(shapes.schema(head), self.classes).one
                    return make(decode(record[len(head) :]))
                return plain_loads(record) if record[:1] == pickle.PROTO else decode_other(record)
            except (ValueError, LookupError, RecursionError) as error:
                raise UndecodableValueError(str(error)) from error

        return decode
