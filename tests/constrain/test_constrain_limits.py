import json
import time
from random import Random

import pytest

from sglang_dsl.errors import ConstraintError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import compile_constraint


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
    started = time.perf_counter()
    with pytest.raises(ConstraintError):
        compile_constraint(ConstraintSpec(kind="json_schema", text=REFUSED[name]))
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("name", ACCEPTED)
def test_schema_large_but_legal_compiles_within_budget(name):
    started = time.perf_counter()
    compiled = compile_constraint(ConstraintSpec(kind="json_schema", text=ACCEPTED[name]))
    assert compiled.matches(compiled.sample_text(Random(1), characters=50))
    assert time.perf_counter() - started < 10
