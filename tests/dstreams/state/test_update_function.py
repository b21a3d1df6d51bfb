"""The three forms of an update function: checked where they are given, applied to a partition."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from pyspark import cloudpickle

from dstreams.common.durations import batch_datetime
from dstreams.errors import InvalidStreamError
from dstreams.spark.blocks import Block, Side, encode_block
from dstreams.spark.cogroup import ColumnStep, IteratorStep
from dstreams.spark.failures import UserFunctionError
from dstreams.spark.partitioner import StablePartitioner
from dstreams.state.update_function import UpdateForm, UpdateFunction

OPERATION = "updateStateByKey at app.py:12"
STATE = encode_block(Side.STATE, ["a", "b"], [10, 20])
BATCH = encode_block(Side.BATCH, ["b", "c", "b"], [1, 2, 3])


def add(values: list[int], state: int | None) -> int | None:
    return sum(values) + (state or 0)


class Adder:
    def __call__(self, values: list[int], state: int | None) -> int:
        return sum(values) + (state or 0)

    def method(self, values: list[int], state: int | None) -> int:
        return sum(values) + (state or 0)

    @staticmethod
    def static(values: list[int], state: int | None) -> int:
        return sum(values) + (state or 0)


def add_scaled(scale: int, values: list[int], state: int | None, *, start: int = 0) -> int:
    return scale * sum(values) + (state or start)


def applied(func: Any, form: str, **task: Any) -> dict[Any, Any]:
    """Return the state that *func* makes of STATE and BATCH."""
    options = {"time_ms": 0, "unique": True, "partitioner": None, **task}
    step = UpdateFunction.checked(func, form, OPERATION).task(**options)
    frames = map(Block, step(0, iter([BATCH, STATE])))
    return {
        key: value
        for block in frames
        for key, value in zip(block.keys(), block.values(), strict=True)
    }


@pytest.mark.parametrize(
    "func",
    [
        add,
        Adder(),
        Adder().method,
        Adder.static,
        lambda values, state: sum(values) + (state or 0),
        lambda values, state, start=0: sum(values) + (state or start),
        lambda *arguments: sum(arguments[0]) + (arguments[1] or 0),
        functools.partial(add_scaled, 1),
        functools.partial(add_scaled, 1, start=0),
    ],
    ids=["function", "object", "method", "static", "lambda", "default", "star", "partial", "named"],
)
def test_values_form(func: Any) -> None:
    """``f(values, state)`` is called once for each key, whatever kind of callable it is."""
    assert applied(func, "values") == {"a": 10, "b": 24, "c": 2}


def test_builtin_as_an_update_function() -> None:
    """A builtin without a signature is accepted, and messages show its name."""
    with pytest.raises(
        UserFunctionError, match=r"update function builtins.max of .* failed for key 'a'"
    ):
        applied(max, "values")


def test_keyed_form() -> None:
    """``f(time, key, values, state)`` gets the batch time as PySpark has it, and each key."""
    calls: list[Any] = []

    def keyed(time: datetime, key: Any, values: list[int], state: Any) -> Any:
        calls.append((time, key, values, state))
        return None if key == "a" else key * 2

    moment = batch_datetime(1_700_000_001_250)
    assert applied(keyed, "keyed", time_ms=1_700_000_001_250) == {"b": "bb", "c": "cc"}
    assert calls == [
        (moment, "a", [], 10),
        (moment, "b", [1, 3], 20),
        (moment, "c", [2], None),
    ]


def test_iterator_form() -> None:
    """``f(iterator)`` sees all keys of a partition and says which of them stay."""

    def iterate(entries: Iterator[Any]) -> Iterator[Any]:
        for key, values, state in entries:
            if key != "a":
                yield key, (values, state)

    assert applied(iterate, "iterator") == {"b": ([1, 3], 20), "c": ([2], None)}
    assert applied(lambda entries: [], "iterator") == {}


@pytest.mark.parametrize("falsy", [0, "", [], False, 0.0, (), {}], ids=repr)
@pytest.mark.parametrize("form", ["values", "keyed"])
def test_none_drops_a_key_and_nothing_else_does(form: str, falsy: Any) -> None:
    """Only None means that there is no state."""
    keyed = form == "keyed"
    stay: Any = (lambda *_: falsy) if keyed else (lambda values, state: falsy)
    drop: Any = (lambda *_: None) if keyed else (lambda values, state: None)
    assert applied(stay, form) == {"a": falsy, "b": falsy, "c": falsy}
    assert applied(drop, form) == {}


@pytest.mark.parametrize(
    ("func", "form", "message"),
    [
        (
            lambda values: 1,
            "values",
            r"updateStateByKey at app.py:12 calls f\(values, state\) -> new state, or None to "
            r"drop the key, but .*<lambda>:\d+ takes \(values\); let it take 2 positional",
        ),
        (lambda a, b, c: 1, "values", r"takes \(a, b, c\); let it take 2 positional arguments"),
        (add, "keyed", r"calls f\(time, key, values, state\) .* takes \(values, state\); .* 4 "),
        (
            add,
            "iterator",
            r"calls f\(iterator of \(key, values, state\)\) .* take 1 ",
        ),
        (5, "values", r"updateStateByKey at app.py:12 needs a function f\(values, state\)"),
        (None, "iterator", "needs a function"),
        (
            add,
            "value",
            "form of updateStateByKey at app.py:12 must be .* got .value.; for functions",
        ),
        (add, None, "must be 'values', 'keyed' or 'iterator', got None"),
        (add, ["values"], r"got \['values'\]"),
    ],
)
def test_functions_that_cannot_work_are_refused(func: Any, form: Any, message: str) -> None:
    """A wrong number of arguments, no function, no form: said where the stream is defined."""
    with pytest.raises(InvalidStreamError, match=message):
        UpdateFunction.checked(func, form, OPERATION)


def test_form_is_an_enum_below() -> None:
    """Texts of the public method become values of an Enum, which are texts as well."""
    checked = UpdateFunction.checked(add, "values", OPERATION)
    assert checked.form is UpdateForm.VALUES
    assert UpdateFunction.checked(add, UpdateForm.VALUES, OPERATION) == checked
    assert [form.value for form in UpdateForm] == ["values", "keyed", "iterator"]


@pytest.mark.parametrize(
    ("form", "kind", "func"),
    [
        ("values", ColumnStep, add),
        ("keyed", ColumnStep, lambda time, key, values, state: state),
        ("iterator", IteratorStep, lambda entries: entries),
    ],
)
def test_tasks(form: str, kind: type, func: Callable[..., Any]) -> None:
    """The task knows what is known of the state, and travels to the workers."""
    partitioner = StablePartitioner(2)
    for unique in (True, False):
        task = UpdateFunction.checked(func, form, OPERATION).task(0, unique, partitioner)
        assert type(task) is kind
        assert isinstance(task, (ColumnStep, IteratorStep))
        copy = pickle.loads(cloudpickle.dumps(task))
        assert copy.unique is unique
        assert copy.update.where == task.update.where
        assert getattr(copy, "partitioner", partitioner) == partitioner


@pytest.mark.parametrize("form", ["values", "keyed", "iterator"])
def test_errors_name_operation_and_function(form: str) -> None:
    """An error of the function names its module and line, and those of the operation."""

    def fail(*_: Any) -> Any:
        raise LookupError("no such thing")

    where = rf"update function \S*fail:\d+ of {OPERATION} failed"
    with pytest.raises(UserFunctionError, match=rf"{where}.*: LookupError: no such thing"):
        applied(fail, form)


def test_only_the_keyed_form_needs_keys() -> None:
    """Keys that no function looks at stay packed."""
    packed = Block(encode_block(Side.STATE, [], [1] * 5000, memoryview(b"not keys")))
    frames = [encode_block(Side.STATE, [], [1] * 5000, packed.key_column)]
    values = UpdateFunction.checked(add, "values", OPERATION).task(0, True, None)
    (result,) = values(0, iter(frames))
    assert Block(result).values() == [1] * 5000
    keyed = UpdateFunction.checked(lambda *_: 1, "keyed", OPERATION).task(0, True, None)
    with pytest.raises(pickle.UnpicklingError):
        list(keyed(0, iter(frames)))
