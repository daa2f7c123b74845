import json
import re
from decimal import Decimal
from itertools import combinations, product

import pytest

from sglang_dsl.errors import ConstraintError
from sglang_dsl.ir.specs import ConstraintSpec
from sglang_dsl.runtime.constrain.compile import audit, compile_constraint, findings


def matcher(schema, **options):
    return compile_constraint(ConstraintSpec.json_schema(schema, **options))


def source(text):
    return compile_constraint(ConstraintSpec(kind="json_schema", text=text))


ANSWER = {
    "type": "object",
    "properties": {
        "category": {"enum": ["billing", "bug", "other"]},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
        "summary": {"type": "string", "maxLength": 80},
        "reply": {"type": "string", "maxLength": 160},
        "refund": {"type": "boolean"},
    },
    "required": ["category", "priority", "summary", "reply", "refund"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
        }
    },
}
MUTUAL = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}},
        "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
    },
}
SHAPES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": k}, "n": {"type": "integer"}}, "required": ["kind", "n"]}
        for k in ("circle", "square")
    ]
}

CASES = [
    (ANSWER, '{"category":"bug","priority":3,"summary":"a","reply":"b","refund":false}', True),
    (ANSWER, '{ "category" : "bug" ,\n"priority":3,"summary":"a","reply":"b","refund":true }', True),
    (ANSWER, '{"priority":3,"category":"bug","summary":"a","reply":"b","refund":false}', False),
    (ANSWER, '{"category":"bug","priority":6,"summary":"a","reply":"b","refund":false}', False),
    (ANSWER, '{"category":"bug","priority":3,"summary":"a","reply":"b","refund":false,"x":1}', False),
    (TREE, '{"v":1,"kids":[{"v":2},{"v":3,"kids":[]}]}', True),
    (TREE, '{"v":1,"kids":[{"kids":[]}]}', False),
    (MUTUAL, '{"b":{"a":{"b":{}}}}', True),
    (MUTUAL, '{"a":{}}', False),
    (SHAPES, '{"kind":"square","n":2}', True),
    (SHAPES, '{"kind":"circle"}', False),
    ({"type": ["string", "null"]}, "null", True),
    ({"type": "integer", "nullable": True}, "null", True),
    ({"type": "integer"}, "-0", False),
    ({"type": "integer"}, "01", False),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", True),
    ({"anyOf": [{"minimum": 5}, {"maximum": 2}], "type": "integer"}, "3", False),
    ({"anyOf": [{"minimum": 5}, {"maximum": 2}], "type": "integer"}, "7", True),
    ({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]}, "9", False),
    ({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]}, "1", False),
    ({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]}, "6", True),
    ({"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}}, '"xyz"', False),
    ({"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}}, '"xy"', True),
    ({"type": "string", "enum": ["a", 1]}, "1", False),
    ({"enum": ["a", 1, None, {"k": [1]}]}, '{"k": [1]}', True),
    ({"const": 'q"\\é'}, r'"q\"\\é"', True),
    ({"type": "object", "properties": {"a": {}}, "required": ["a", "zz"], "additionalProperties": True}, '{"a":1}', False),
    ({"type": "object", "properties": {"a": {}}, "required": ["a", "zz"], "additionalProperties": True}, '{"a":1,"zz":2}', True),
    ({"type": "object", "properties": {"a": False, "b": {}}}, '{"b":1}', True),
    ({"type": "object", "properties": {"a": False, "b": {}}}, '{"a":1}', False),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"x":1,"y":2}', True),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"x":"1"}', False),
    ({"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, '{"abc":"x"}', True),
    ({"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, '{"ab":"x"}', False),
    ({"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, '{"ab":1,"a":"x"}', True),
    ({"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, r'{"\u0061b":"x"}', False),
    ({"type": "object", "patternProperties": {"^x_": {"type": "integer"}}}, '{"x_a":1}', True),
    ({"type": "object", "patternProperties": {"^x_": {"type": "integer"}}}, '{"x_a":"1"}', False),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, '{"b":1}', True),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, '{"c":1}', False),
    ({"type": "object", "additionalProperties": {}, "minProperties": 1, "maxProperties": 2}, "{}", False),
    ({"type": "object", "additionalProperties": {}, "minProperties": 1, "maxProperties": 2}, '{"a":1,"b":2,"c":3}', False),
    ({"type": "object", "required": ["a"]}, "{}", False),
    ({"type": "object", "required": ["a"]}, '{"a":[{"deep":null}]}', True),
    ({"type": "array", "maxItems": 3}, '[1,"a",{}]', True),
    ({"type": "array", "maxItems": 3}, "[1,2,3,4]", False),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}, "[true,false]", True),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}, "[true]", False),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2}, '[1,"a"]', True),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2}, "[1]", False),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, '[1,"a","b"]', True),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, "[]", True),
    ({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}, "95", True),
    ({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}, "96", False),
    ({"minLength": 3}, '"ab"', False),
    ({"minLength": 3}, "7", True),
    (True, '{"a":[1,2.5e3,"x",null]}', True),
    (True, "{'a':1}", False),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text", "allowed"), CASES)
def test_schema_text_is_allowed_as_the_standard_says(schema, text, allowed):
    assert matcher(schema).matches(text) == allowed


STRINGS = [
    ({"maxLength": 1}, r'"\n"', True),
    ({"maxLength": 1}, r'"\u00e9"', True),
    ({"maxLength": 1}, r'"\ud83d\ude42"', True),
    ({"maxLength": 1}, '"🙂"', True),
    ({"maxLength": 1}, '"ab"', False),
    ({"maxLength": 1}, r'"\ud83d"', False),
    ({"minLength": 2, "maxLength": 3}, '"日本"', True),
    ({"minLength": 2}, '"a"', False),
    ({}, '"a\tb"', False),
    ({"pattern": "b"}, '"abc"', True),
    ({"pattern": "^b"}, '"abc"', False),
    ({"pattern": "^a|b$"}, '"ax"', True),
    ({"pattern": r'^["\\]+$'}, '"""', False),
    ({"pattern": r'^["\\]+$'}, r'"\"\\"', True),
    ({"pattern": r"^\n$"}, r'"\n"', True),
    ({"pattern": r"^\n$"}, '"\n"', False),
    ({"pattern": r"^.$"}, r'"\n"', False),
    ({"pattern": r"^\w$"}, '"é"', False),  # JSON Schema's dialect has ASCII classes, Python's has not: both agree on ASCII
    ({"pattern": r"^\W$"}, '"é"', False),
    ({"pattern": "^[a-z]+$", "minLength": 3}, '"ab"', False),
    ({"pattern": "^[a-z]+$", "maxLength": 2}, '"ab"', True),
    ({"pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 6}, '"ab-cd"', True),
    ({"pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 6}, '"ab-cde-f"', False),
    ({"pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 6}, '"ab-"', False),
    ({"pattern": "b", "minLength": 3}, '"ab"', False),
    ({"pattern": "b", "minLength": 3}, '"abc"', True),
    ({"pattern": "b", "maxLength": 2}, r'"\nb"', True),
    ({"pattern": "b", "maxLength": 2}, r'"\n\nb"', False),
    ({"pattern": "^[0-9]{4}$", "maxLength": 10}, '"1234"', True),
    ({"format": "date"}, '"2024-02-29"', True),
    ({"format": "date"}, '"2023-02-29"', False),
    ({"format": "date"}, '"2024-02-30"', False),
    ({"format": "date-time"}, '"2024-01-01T10:00:00Z"', True),
    ({"format": "date-time"}, '"2024-01-01T24:00:00Z"', False),
    ({"format": "email"}, '"a.b@example.org"', True),
    ({"format": "email"}, '"a@"', False),
    ({"format": "uuid"}, '"123e4567-e89b-12d3-a456-426614174000"', True),
    ({"format": "ipv4"}, '"256.0.0.1"', False),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "text", "allowed"), STRINGS)
def test_string_text_is_allowed_as_its_value_is(keywords, text, allowed):
    assert matcher({"type": "string", **keywords}).matches(text) == allowed


@pytest.mark.parametrize("pattern", ["^a*b*$", "a(b|a)", "^(ab)+$", "b$", "^a|b$", "^(a|ab)(b|bb)*$", "^[^a]+"])
@pytest.mark.parametrize(("low", "high"), [(0, 3), (2, None), (1, 4), (3, 3), (0, 0)])
def test_pattern_with_length_bounds_holds_exactly_what_both_allow(pattern, low, high):
    schema = {"type": "string", "pattern": pattern, "minLength": low} | ({} if high is None else {"maxLength": high})
    values = ["".join(letters) for n in range(6) for letters in product("ab", repeat=n)]
    expected = {v for v in values if re.search(pattern, v) and low <= len(v) <= (99 if high is None else high)}
    if not expected:
        with pytest.raises(ConstraintError, match="no value"):
            matcher(schema)
        return
    compiled = matcher(schema)
    assert {v for v in values if compiled.matches(f'"{v}"')} == expected


@pytest.mark.parametrize("low", [None, -1234, -10, -1, 0, 1, 9, 99, 100, 1001])
@pytest.mark.parametrize("high", [None, -11, -1, 0, 5, 10, 99, 1000, 20500])
def test_integer_range_holds_exactly_its_members(low, high):
    if low is not None and high is not None and low > high:
        with pytest.raises(ConstraintError, match="no value"):
            matcher({"type": "integer", "minimum": low, "maximum": high})
        return
    bounds = {k: v for k, v in (("minimum", low), ("maximum", high)) if v is not None}
    compiled = matcher({"type": "integer", **bounds})
    for number in [*range(-130, 130), -1235, -1234, -1233, 998, 999, 1000, 1001, 1002, 20499, 20500, 20501, 10**15]:
        inside = (low is None or number >= low) and (high is None or number <= high)
        assert compiled.matches(str(number)) == inside, number


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"minimum": 0, "maximum": 1}, ["0", "1", "0.5", "0.123456789012345", "1.0"], ["1.1", "-0.1", "2", "1.000001"]),
        ({"minimum": 0.5, "maximum": 2.25}, ["0.5", "2.2", "2.25", "1", "0.51"], ["0.49", "2.26", "0", "2.251", "3"]),
        ({"exclusiveMinimum": 0}, ["0.001", "7", "12.5"], ["0", "0.0", "-1"]),
        ({"exclusiveMaximum": -1.5}, ["-1.6", "-2", "-100.25", "-1.51"], ["-1.5", "-1.50", "-1", "0", "1"]),
        ({"minimum": -2.5, "maximum": -2.25}, ["-2.5", "-2.3", "-2.25"], ["-2.51", "-2.2", "2.3"]),
        ({"minimum": 1e-9, "maximum": 2e-9}, ["0.000000001", "0.0000000015"], ["0", "0.0000000021"]),
        ({}, ["1e5", "-0.5E-3", "12"], ["1.", ".5", "+1", "1e999", "NaN"]),
    ],
)
def test_number_range_holds_its_decimals(bounds, inside, outside):
    compiled = matcher({"type": "number", **bounds})
    assert [t for t in inside if not compiled.matches(t)] == []
    assert [t for t in outside if compiled.matches(t)] == []


def test_whitespace_is_bounded_outside_strings_only():
    array = matcher({"type": "array", "items": {"type": "integer"}})
    assert array.matches("[" + " " * 8 + "1]")
    assert not array.matches("[" + " " * 9 + "1]")
    assert matcher({"type": "string"}).matches('"' + " " * 50 + '"')
    assert matcher({"type": "array"}, max_whitespace=None).matches("[" + "\n" * 99 + "]")
    assert not matcher({"type": "array"}, max_whitespace=0).matches("[ ]")
    for empty in ({"type": "object"}, {"type": "object", "properties": {"a": {}}}):
        assert matcher(empty).matches("{" + " " * 8 + "}")
        assert not matcher(empty).matches("{" + " " * 9 + "}")
    assert matcher(ANSWER).matches(
        json.dumps({"category": "bug", "priority": 1, "summary": "", "reply": "", "refund": True}, indent=2)
    )


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}, "type": "object"}, "#/properties/a", "uniqueItems"),
        ({"not": {"const": 0}}, "#", "not"),
        ({"if": {"type": "integer"}, "then": {"minimum": 0}}, "#", "then"),
        ({"type": "array", "contains": {"const": 1}}, "#", "contains"),
        ({"type": "string", "format": "my-own"}, "#", "format"),
        ({"type": "number", "multipleOf": 0.01}, "#", "multipleOf"),
        ({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]}, "#", "oneOf"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#", "dependentRequired"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, "#", "minProperties"),
    ],
)  # fmt: skip
def test_schema_keyword_that_cannot_be_enforced_is_refused_or_listed(schema, path, keyword):
    with pytest.raises(ConstraintError, match=re.escape(f"{keyword!r} at {path} ")):
        matcher(schema)
    weak = [f for f in findings(ConstraintSpec.json_schema(schema)) if f.severity == "weakens"]
    assert (path, keyword) in [(f.path, f.keyword) for f in weak]


BORDERS = [
    ('{"type":"object"', "line 1, column 17"),
    ("[1]", "a schema is an object"),
    ('{"type":"date"}', "'date' is not a JSON type"),
    ("false", "allows no value"),
    ('{"type":"array","minItems":3,"maxItems":2}', "allows no value"),
    ('{"type":"integer","minimum":7,"maximum":3}', "allows no value"),
    ('{"type":"string","pattern":"^[a-z]{5,}$","maxLength":3}', "allows no value"),
    ('{"type":"string","pattern":"[^\\\\s\\\\S]"}', "allows no value"),
    ('{"type":"string","minLength":5,"maxLength":3}', "allows no value"),
    ('{"type":"object","additionalProperties":{},"minProperties":1,"maxProperties":0}', "allows no value"),
    ('{"enum":[]}', "not a non-empty list"),
    ('{"type":"string","enum":[1]}', "allows no value"),
    ('{"type":"string","type":"integer"}', "stands twice"),
    ('{"const":"\\ud800"}', "lone surrogate"),
    ('{"$ref":"#"}', "refers only to itself"),
    ('{"allOf":[{"$ref":"#"}]}', "refers only to itself"),
    ('{"$ref":"#/$defs/x","$defs":{"x":{"$ref":"#/$defs/x"}}}', "refers only to itself"),
    ('{"anyOf":[{"$ref":"#"},{"type":"string"}]}', "refers to itself before anything else"),
    ('{"type":"array","items":{"$ref":"#"},"minItems":1}', "allows no value"),
    ('{"$ref":"http://example.org/s.json"}', "not a local reference"),
    ('{"$ref":"#/$defs/gone"}', "names nothing"),
    ('{"type":"string","minLength":-1}', "not a whole number"),
    ('{"type":"string","pattern":"a(?=b)"}', "looking around"),
    ('{"type":"integer","maximum":NaN}', "NaN"),
    ('{"properties":{"a":[]},"type":"object"}', "is not an object of schemas"),
]


@pytest.mark.parametrize(("text", "message"), BORDERS)
def test_schema_malformed_is_refused_and_the_next_one_still_compiles(text, message):
    with pytest.raises(ConstraintError, match=re.escape(message)):
        source(text)
    assert source('{"enum":["p","q"]}').matches('"q"')


MISSHAPEN = [
    {"type": "object", "properties": [1]},
    {"type": "object", "required": "a"},
    {"allOf": 3},
    {"anyOf": {}},
    {"anyOf": [1]},
    {"enum": 3},
    {"$ref": 3},
    {"type": []},
    {"type": [["a"]]},
    {"type": "string", "pattern": 3},
    {"type": "string", "format": []},
    {"type": "object", "patternProperties": 3},
    {"type": "object", "patternProperties": {"(": {}}},
    {"type": "object", "propertyNames": 3},
    {"type": "array", "items": 3},
    {"type": "array", "items": [{}]},
    {"type": "array", "prefixItems": [3]},
    {"allOf": [{"properties": 3}, {"properties": {}}]},
    {"allOf": [{"required": 3}, {"required": ["a"]}]},
    {"oneOf": [{"type": 3}, {"type": [{}]}]},
    {"oneOf": [{"properties": 3, "required": ["a"]}, {"properties": 4, "required": ["a"]}]},
    {"type": "integer", "exclusiveMinimum": True, "minimum": 3},
    {"type": "integer", "minimum": "3"},
    {"type": "number", "minimum": 1e308},
    {"enum": ["a"], "pattern": "("},
    {"enum": ["a"], "type": "nope"},
    {"nullable": "x"},
]


@pytest.mark.parametrize("schema", MISSHAPEN, ids=json.dumps)
def test_schema_with_a_misshapen_keyword_is_a_constraint_error(schema):
    with pytest.raises(ConstraintError):
        matcher(schema)


def test_audit_lists_what_is_narrowed_and_counts_forced_text():
    report = audit(ConstraintSpec.json_schema({"type": "object", "properties": {"ab": {}}, "required": ["ab"]}), len)
    assert report.forced_tokens == len('{"ab":}')
    assert report.findings == ("'additionalProperties' at # is not given: no additional properties are written",)
    assert audit(ConstraintSpec.choices(("yes", "yesterday")), len).forced_tokens == len("yes")


BOUNDS = ["-11", "-2.5", "-1", "-0.75", "0", "0.25", "0.5", "1", "1.05", "9", "10", "12.5"]
NEAR = [
    f"{sign}{whole}{rest}"
    for sign in ("", "-")
    for whole in ("0", "1", "2", "8", "9", "10", "11", "12", "13")
    for rest in ("", ".0", ".04", ".05", ".050", ".06", ".2", ".25", ".3", ".49", ".5", ".50", ".51", ".74", ".75", ".8", ".99")
]  # fmt: skip


@pytest.mark.parametrize("low_keyword", ["minimum", "exclusiveMinimum"])
@pytest.mark.parametrize("high_keyword", ["maximum", "exclusiveMaximum"])
@pytest.mark.parametrize(
    ("low", "high"), [(a, b) for a, b in combinations(BOUNDS, 2) if (BOUNDS.index(a) + BOUNDS.index(b)) % 3]
)
def test_exclusive_float_bounds_hold_exactly_what_lies_between(low_keyword, high_keyword, low, high):
    compiled = matcher({"type": "number", low_keyword: float(low), high_keyword: float(high)})
    for text in NEAR:
        number = Decimal(text)
        if number.is_signed() and number == 0 and float(low) >= 0:
            continue  # a range that begins at zero or above has no sign to write
        above = number > Decimal(low) if low_keyword == "exclusiveMinimum" else number >= Decimal(low)
        below = number < Decimal(high) if high_keyword == "exclusiveMaximum" else number <= Decimal(high)
        assert compiled.matches(text) == (above and below), text


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"minimum": 1.5, "exclusiveMinimum": 1.5}, ["1.51", "2"], ["1.5", "1.50", "1"]),
        ({"minimum": 1.5, "exclusiveMinimum": 0.5}, ["1.5", "1.51"], ["1.49", "0.6", "1"]),
        ({"minimum": 0.5, "exclusiveMinimum": 1.5}, ["1.51", "2"], ["1.5", "0.5", "1"]),
        ({"maximum": 1.5, "exclusiveMaximum": 1.5}, ["1.49", "1"], ["1.5", "1.50", "2"]),
        ({"maximum": 1.5, "exclusiveMaximum": 2.5}, ["1.5", "1.49"], ["1.51", "2"]),
        ({"maximum": 2.5, "exclusiveMaximum": 1.5}, ["1.49", "1"], ["1.5", "2"]),
    ],
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_of_an_inclusive_and_an_exclusive_bound_the_tighter_one_holds(kind, bounds, inside, outside):
    compiled = matcher({"type": kind, **bounds})
    of_kind = re.compile(r"-?\d+" if kind == "integer" else ".*")
    assert [t for t in inside if of_kind.fullmatch(t) and not compiled.matches(t)] == []
    assert [t for t in outside if of_kind.fullmatch(t) and compiled.matches(t)] == []


def test_value_of_const_is_data_even_where_it_looks_like_a_schema():
    value = {"title": "x", "$ref": "#/gone", "allOf": [{"type": 3}], "default": None}
    text = json.dumps(value)
    for schema in ({"const": value}, {"enum": [value, 1]}):
        assert matcher(schema).matches(text)
        assert not matcher(schema).matches("{}")
        assert not matcher(schema).matches(json.dumps({"allOf": [{"type": 3}]}))
