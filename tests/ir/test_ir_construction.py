"""Nodes are made by a constructor of our own: it has to be the dataclass's in all but speed."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import MISSING, FrozenInstanceError, fields, replace

import pytest

from sglang_dsl.ir.nodes import NODE_CLASSES, Gen, Plain, Text
from sglang_dsl.ir.specs import SamplingSpec


@pytest.mark.parametrize("kind", NODE_CLASSES.values(), ids=lambda kind: kind.kind)
def test_constructor_takes_every_field_by_keyword_and_fills_in_the_defaults(kind) -> None:
    given = {f.name: object() for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    made = kind(**given)
    for field in fields(kind):
        if field.name in given:
            assert getattr(made, field.name) is given[field.name]
        elif field.default is not MISSING:
            assert getattr(made, field.name) is field.default
        else:
            assert getattr(made, field.name) == field.default_factory()
    assert all(p.kind is p.KEYWORD_ONLY for p in list(inspect.signature(kind.__init__).parameters.values())[1:])


@pytest.mark.parametrize("wrong", [{}, {"id": "a", "nonsense": 1}])
def test_constructor_refuses_missing_and_unknown_fields(wrong) -> None:
    with pytest.raises(TypeError):
        Gen(**wrong)


def test_node_made_is_frozen_equal_copied_and_pickled_as_before() -> None:
    node = Text(id="a", pieces=(Plain("x"),))
    with pytest.raises(FrozenInstanceError):
        node.id = "b"  # type: ignore[misc]
    assert node == Text(id="a", pieces=(Plain("x"),)) == copy.copy(node) == pickle.loads(pickle.dumps(node))
    assert hash(node) == hash(copy.copy(node))
    assert replace(node, id="b").id == "b"
    assert Gen(id="g").sampling == SamplingSpec()
