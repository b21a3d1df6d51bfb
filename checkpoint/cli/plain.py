"""Display of stored values as JSON, without running anything that the bytes name.

A class outside the short list of :mod:`checkpoint.state_store.plain_pickles` becomes an
:class:`Opaque`, which records what the pickle gives it. Before a pickle is loaded,
:func:`require_bounded` rejects one that would take far more memory or time than its size suggests:
tuples that each hold the previous one twice have exponentially many parts.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from checkpoint.log.state_files import (
    PairBlock,
    PairForm,
    arrow_pairs,
    is_arrow_block,
    rows_of_fields,
)
from checkpoint.state_store import Classes, DataValues
from checkpoint.state_store.classes import Maker, Schema, schema_of_id
from checkpoint.state_store.plain_pickles import PlainUnpickler
from checkpoint.state_store.shapes import SHAPE, Shapes, head_of, shape_reader
from checkpoint.state_store.values import Decoder, UndecodableValueError, ValueCodec

_MOST_REPEATED, _REPEATED_PER_BYTE = 1_000_000, 10
_MOST_BITS = 1 << 20  # of the ints of a fraction
_TOO_MANY = "it has too many parts, most of them repeated"
_SHAPE = bytes((SHAPE,))
_CHANGING = frozenset(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"))
_CHARACTERS_OF_PART = 64  # of text that count as one part
_DECIMAL_BITS = 10_000  # an int up to this size is shown in decimal
_MOST_PARTS, _LEAST_PARTS = 1_000_000, 1_000
Loads = Callable[[bytes], Any]


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
    """An object whose class is not loaded: the name of the class, and the content of its pickle."""

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
            raise ValueError(f"it names a class by the number {argument} only")
        if name == "MEMOIZE" or "PUT" in name:
            place = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if not 0 <= place <= len(data):
                raise ValueError(f"it refers to object {place}, more than its size allows")
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
                raise ValueError("it uses more objects than it creates")
            taken = stack[start:]
            del stack[start:]
            size = sum(parts[0] for parts in taken)
            if name in _CHANGING:
                taken[0][0] = size
                stack.append(taken[0])
            else:
                stack += [[1 + size] for _ in opcode.stack_after]


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


class NotShown(dict[str, str]):
    """The placeholder for a value that cannot be shown: ``{"not shown": reason}`` in JSON."""

    def __init__(self, reason: str) -> None:
        super().__init__({"not shown": reason})

    @property
    def reason(self) -> str:
        """The reason."""
        return self["not shown"]


def pairs_of(payload: bytes, loads: Loads) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and values of a block of a state file.

    An unreadable value becomes :class:`NotShown`; so does the key of an unreadable block.
    """
    try:
        yield from _pairs(payload, loads)
    except Exception as error:
        yield NotShown(str(error)), None


def _pairs(payload: bytes, loads: Loads) -> Iterator[tuple[Any, Any]]:
    if is_arrow_block(payload):
        yield from arrow_pairs(payload)
        return
    block = _block_of(payload)
    if block is None:
        yield from map(_pair, _as_list(loads(payload)))
        return
    key_list = loads(bytes(block.key_column))
    try:
        value_list = loads(bytes(block.value_column))
    except Exception as error:
        value_list = [NotShown(str(error))] * len(key_list)
    else:
        if block.form is PairForm.SEPARATE:
            value_list = [_loaded(loads, value) for value in value_list]
        elif block.form is PairForm.FIELDS:
            value_list = rows_of_fields(value_list)
    yield from zip(key_list, value_list, strict=True)


def _loaded(loads: Loads, value: bytes) -> Any:
    try:
        return loads(value)
    except Exception as error:
        return NotShown(str(error))


def _block_of(payload: bytes) -> PairBlock | None:
    """Return the block of a payload, None for a pickle."""
    if payload[:1] > b"\x01":
        return None
    try:
        return PairBlock(payload)
    except ValueError:
        return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pair(record: Any) -> tuple[Any, Any]:
    if isinstance(record, tuple) and len(record) == 2:
        return record
    return record, None


class Shower:
    """Converts values to JSON.

    A value may have a million parts. Each value with more halves the limit for the next one, so a
    small file of many such values takes bounded time.
    """

    def __init__(self) -> None:
        self._most_parts = _MOST_PARTS

    def shown(self, value: Any) -> Any:
        """Return *value* as JSON; :class:`NotShown` if it is too large or nests too deeply."""
        try:
            return _Show(Parts(self._most_parts)).show(value)
        except TooManyPartsError as error:
            self._most_parts = max(self._most_parts // 2, _LEAST_PARTS)
            return NotShown(str(error))
        except Exception as error:
            return NotShown(str(error) or type(error).__name__)


class _Show:
    """Converts one value."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def show(self, value: Any) -> Any:
        self._parts.take()
        if value is None or isinstance(value, bool):
            return value
        for kind, show in _SHOWN.items():
            if isinstance(value, kind):
                return show(self, value)
        return {type(value).__name__: str(value)}

    def _int(self, value: int) -> Any:
        self._parts.take(value.bit_length() // _DECIMAL_BITS)
        return value if value.bit_length() <= _DECIMAL_BITS else {"int": hex(value)}

    def _str(self, value: str) -> str:
        self._parts.take(len(value) // _CHARACTERS_OF_PART)
        return value

    def _float(self, value: float) -> Any:
        return value if math.isfinite(value) else {"float": repr(value)}

    def _bytes(self, value: bytes | bytearray) -> dict[str, Any]:
        self._parts.take(len(value) // _CHARACTERS_OF_PART)
        return {"bytes": bytes(value).hex()}

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(isinstance(key, str) for key in value):
            return {self._str(key): self.show(item) for key, item in value.items()}
        return {"pairs": [[self.show(key), self.show(item)] for key, item in value.items()]}

    def _list(self, value: Any) -> list[Any]:
        return [self.show(item) for item in value]

    def _set(self, value: Any) -> dict[str, Any]:
        return {"set": sorted(map(self.show, value), key=repr)}

    def _type(self, value: Any) -> dict[str, Any]:
        return {"name": getattr(value, "name", value.__qualname__)}

    def _instance(self, value: Instance) -> dict[str, Any]:
        fields = value.fields
        shown = self._dict(fields) if isinstance(fields, dict) else self._list(fields)
        return {"class": self._str(value.name), "fields": shown}

    def _opaque(self, value: Opaque) -> dict[str, Any]:
        parts = vars(value)
        found = {
            key: self.show(parts[key])
            for key in ("arguments", "named", "state", "items")
            if parts.get(key)
        }
        return {"class": value.name, **found}


_SHOWN: Mapping[Any, Callable[[_Show, Any], Any]] = {
    NotShown: lambda _, value: value,
    int: _Show._int,
    str: _Show._str,
    float: _Show._float,
    Instance: _Show._instance,
    Opaque: _Show._opaque,
    type: _Show._type,
    (bytes, bytearray): _Show._bytes,
    dict: _Show._dict,
    (list, tuple, deque): _Show._list,
    (set, frozenset): _Show._set,
}
