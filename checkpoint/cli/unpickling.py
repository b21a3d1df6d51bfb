"""Unpickling for tools: whatever the bytes say, nothing of it is run, and it comes to an end.

Unpickling a user's object would import and run the user's code. Here only the classes of a short
list are made; any other becomes an :class:`Opaque`, which remembers what the pickle gives it. Nor
can a few bytes take all of the memory or the time: the unpickler is that of Python, not that in C,
which makes room for any place in its memo that a pickle names, and what has to be hashed is first
counted, because one tuple that holds another twice, and so on, has as many parts as one likes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import deque
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, ClassVar

from checkpoint.cli.instances import Instance, ShownClasses
from checkpoint.state_store import DataValues
from checkpoint.state_store.plain_pickles import plain_names
from checkpoint.state_store.shapes import SHAPE, Shapes, head_of, shape_reader
from checkpoint.state_store.values import Decoder, UndecodableValueError, ValueCodec

_MOST_HASHED, _HASHED_PER_BYTE = 10_000, 10
_MOST_BITS = 1 << 20  # of the ints of a fraction

_CONTAINERS = (tuple, list, set, frozenset, deque, Instance)


def _fraction(numerator: Any, denominator: Any) -> Any:
    """Make a fraction; of large numbers it would take for ever."""
    for number in (numerator, denominator):
        if type(number) is not int or number.bit_length() > _MOST_BITS:
            raise pickle.UnpicklingError("a fraction is made of two ints, not too large")
    return Fraction(numerator, denominator)


class Opaque:
    """An object of a class that is not made here: its class, and what its pickle says of it."""

    name = "?"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._take(*arguments, **named)

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Make one with what the pickle passes."""
        made = super().__new__(cls)
        made._take(*arguments, **named)
        return made

    def _take(self, *arguments: Any, **named: Any) -> None:
        if arguments or named or "arguments" not in vars(self):
            vars(self).update(arguments=arguments, named=named, state=None, items=[])

    def __setstate__(self, state: Any) -> None:
        vars(self)["state"] = state

    def append(self, item: Any) -> None:
        """Take an item, as a subclass of list does."""
        vars(self)["items"].append(item)

    def extend(self, items: Any) -> None:
        """Take items, as a subclass of list does."""
        vars(self)["items"].extend(items)

    def add(self, item: Any) -> None:
        """Take an item, as a subclass of set does."""
        self.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.append((key, value))

    def __call__(self, *arguments: Any, **named: Any) -> Opaque:
        """Return what a function that is not called would have made."""
        made = Opaque(*arguments)
        vars(made)["named"] = named
        return made


class TooManyPartsError(ValueError):
    """A value has more parts than there may be."""


class Parts:
    """Counts the parts of values, as often as they are met."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, count: int = 1) -> None:
        """Count some. Raises TooManyPartsError."""
        self._left -= count
        if self._left < 0:
            raise TooManyPartsError("it has too many parts, most of them the same ones again")

    def take_all(self, values: Iterable[Any]) -> None:
        """Count *values* and all that is in them. Raises TooManyPartsError."""
        todo = [iter(values)]
        while todo:
            for value in todo[-1]:
                self.take()
                if isinstance(value, dict):
                    todo += [iter(value.values()), iter(value)]
                    break
                if isinstance(value, _CONTAINERS):
                    todo.append(iter(value))
                    break
            else:
                todo.pop()


_SHAPE = bytes((SHAPE,))
_SIZE = struct.Struct("<Q")
_PLACE = struct.Struct("<I")
_NAME_OF_FRACTION = ("checkpoint.state_store.plain_pickles", "_fraction")


class _PlainUnpickler(pickle._Unpickler):
    """Makes plain data, and calls nothing else."""

    read: Callable[[int], bytes]
    readline: Callable[[], bytes]
    append: Callable[[Any], None]
    stack: list[Any]
    memo: dict[int, Any]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._size_bytes = len(data)
        self._parts = Parts(_MOST_HASHED + _HASHED_PER_BYTE * len(data))
        self._plain = {**plain_names(), _NAME_OF_FRACTION: _fraction}

    def find_class(self, module: str, name: str) -> Any:
        plain = self._plain.get((module, name))
        if plain is not None:
            return plain
        return type("Opaque", (Opaque,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is not tuple or not pid or type(pid[0]) is not str:
            raise pickle.UnpicklingError("it refers to something that is not in it")
        return Instance.of_text(pid[0], pid[1:])

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"it names a class by the number {code}, which says nothing")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def _load_put(self) -> None:
        self._memoize(int(self.readline()[:-1]))

    def _load_long_binput(self) -> None:
        self._memoize(*_PLACE.unpack(self.read(_PLACE.size)))

    def _memoize(self, place: int) -> None:
        if not 0 <= place <= self._size_bytes:
            raise pickle.UnpicklingError(f"it has no room for so many objects as {place}")
        self.memo[place] = self.stack[-1]

    def _load_bytearray(self) -> None:
        (size,) = _SIZE.unpack(self.read(_SIZE.size))
        if size > self._size_bytes:
            raise pickle.UnpicklingError("it says that it is longer than it is")
        self.append(bytearray(self.read(size)))

    def _load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Opaque):
            made.__setstate__(state)
        elif callable(made):
            raise pickle.UnpicklingError("it changes a class")

    dispatch[pickle.PUT[0]] = _load_put
    dispatch[pickle.LONG_BINPUT[0]] = _load_long_binput
    dispatch[pickle.BYTEARRAY8[0]] = _load_bytearray
    dispatch[pickle.BUILD[0]] = _load_build


def _counted(load: Callable[[Any], None], hashed: Callable[[list[Any]], Iterable[Any]]) -> Any:
    def load_counted(unpickler: _PlainUnpickler) -> None:
        unpickler._parts.take_all(hashed(unpickler.stack))
        load(unpickler)

    return load_counted


def _all(stack: list[Any]) -> list[Any]:
    return stack


def _keys(stack: list[Any]) -> list[Any]:
    return stack[::2]


def _key(stack: list[Any]) -> list[Any]:
    return stack[-2:-1]


def _last(stack: list[Any]) -> list[Any]:
    return stack[-1:]


def _last_two(stack: list[Any]) -> list[Any]:
    return stack[-2:]


# What is on the stack when an opcode hashes it, or calls something that may.
for _opcode, _hashed in (
    (pickle.SETITEM, _key),
    (pickle.SETITEMS, _keys),
    (pickle.DICT, _keys),
    (pickle.ADDITEMS, _all),
    (pickle.FROZENSET, _all),
    (pickle.REDUCE, _last),
    (pickle.NEWOBJ, _last),
    (pickle.NEWOBJ_EX, _last_two),
    (pickle.OBJ, _all),
    (pickle.INST, _all),
):
    _dispatch = _PlainUnpickler.dispatch
    _dispatch[_opcode[0]] = _counted(_dispatch[_opcode[0]], _hashed)


def plain_loads(data: bytes) -> Any:
    """Read a pickle and run nothing that it names. Raises ValueError."""
    try:
        return _PlainUnpickler(data).load()
    except Exception as error:
        raise ValueError(f"it cannot be shown without unpickling it: {error}") from error


class ShownData(DataValues):
    """Data as tools show it: no class is made, and a pickle is read as one that may do harm."""

    many_decoder = ValueCodec.many_decoder

    def __init__(self) -> None:
        super().__init__(ShownClasses())

    def decoder(self, shapes: Shapes) -> Decoder:
        """Return the function that makes a value of bytes."""
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
