import json
from dataclasses import asdict
from random import Random

import pytest

from sglang_dsl.errors import ConstraintError, SpecError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import compile_constraint
from sglang_dsl.runtime.constrain.grammar import LIMITS, set_limits
from tests.counted import counted


def nested(depth):
    return '{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth


def properties(count):
    return {f"p{i}": {"type": "integer"} for i in range(count)}


REFUSED = {
    "nested 200": nested(200),
    "nested 500": nested(500),
    "nested 10000": nested(10000),
    "arrays nested 3000": '{"type":"array","items":' * 3000 + "{}" + "}" * 3000,
    "brackets only": "[" * 100_000,
    "20000 values": json.dumps({"enum": [f"v{i}" for i in range(20000)]}),
    "1000 optional": json.dumps({"type": "object", "properties": properties(1000)}),
    "100 of 200 optional": json.dumps({"type": "object", "minProperties": 100, "properties": properties(200)}),
    "300 kB": json.dumps({"const": "x" * 300_000}),
    "billion laughs": json.dumps(
        {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {"type": "integer"}}}
    ),
}  # fmt: skip
ACCEPTED = {
    "nested 16": nested(16),
    "200 optional": json.dumps({"type": "object", "properties": properties(200)}),
    "huge arrays": json.dumps({"type": "array", "maxItems": 10**6, "items": {"type": "array", "maxItems": 10**6}}),
    "bounded pattern": json.dumps({"type": "string", "pattern": "^[a-zA-Z ]{1,129}$"}),
    "150 alternations": json.dumps({"type": "string", "pattern": f"^({'|'.join(f'w{i}[a-z]*' for i in range(150))})$"}),
    "5000 values": json.dumps({"enum": [f"value {i}" for i in range(5000)]}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_schema_too_large_is_refused_at_once(name):
    def refuse():
        with pytest.raises(ConstraintError):
            compile_constraint(ConstraintSpec(kind="json_schema", text=REFUSED[name]))

    assert counted(refuse)[1] < 2_000_000


@pytest.mark.parametrize("name", ACCEPTED)
def test_schema_large_but_legal_compiles_within_budget(name):
    def use():
        compiled = compile_constraint(ConstraintSpec(kind="json_schema", text=ACCEPTED[name]))
        return compiled.matches(compiled.sample_text(Random(1), characters=50))

    matches, calls = counted(use)
    assert matches
    assert calls < 2_000_000


@pytest.fixture
def limits():
    before = asdict(LIMITS)
    yield
    set_limits(**before)


RAISED = [
    ("properties", 700, {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(600)}}),
    ("enum_values", 10_500, {"enum": list(range(10_200))}),
    ("source_bytes", 600_000, {"const": "x" * 300_000}),
]


@pytest.mark.parametrize(("limit", "size", "schema"), RAISED)
def test_limits_are_raised_by_name_and_named_in_refusals(limits, limit, size, schema):
    spec = ConstraintSpec.json_schema(schema)
    with pytest.raises(ConstraintError, match=f"more than {getattr(LIMITS, limit)}"):
        compile_constraint(spec)
    set_limits(**{limit: size})
    compile_constraint(spec)


@pytest.mark.parametrize(
    "sizes",
    [
        {"propertes": 5},
        {"properties": 0},
        {"properties": "9"},
        {"properties": True},
        {"depth": 65},
        {"chain": 9, "enum_values": -1},
    ],
)
def test_limits_are_checked_and_all_or_none_are_set(limits, sizes):
    before = asdict(LIMITS)
    with pytest.raises(SpecError):
        set_limits(**sizes)
    assert asdict(LIMITS) == before
