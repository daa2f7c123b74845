"""The readable form: exact both ways, one line per node, errors with a caret."""

import pytest
from graph_strategy import GRAPHS, same
from hypothesis import HealthCheck, given, settings

from sglang_dsl.errors import FormatError, Origin
from sglang_dsl.ir.graph import Graph
from sglang_dsl.ir.nodes import (
    Arm,
    Concat,
    Constant,
    DictOf,
    Fork,
    Gen,
    Input,
    Join,
    ListOf,
    Loop,
    Operation,
    Plain,
    Raw,
    Reference,
    Return,
    Select,
    Switch,
    Text,
)
from sglang_dsl.ir.specs import ConstraintSpec, SamplingSpec
from sglang_dsl.ir.text_format import parse, print_graph

POEMS = Graph(
    [
        Input(id="topic", name="topic"),
        Text(
            id="1",
            context="topic",
            pieces=(
                Plain("Write “it”\nabout "),
                Reference("topic", (Operation("strip"), Operation("item", (0,)))),
                Raw("<|x|>"),
            ),
        ),
        Fork(id="2", context="1", size=2),
        Gen(
            id="3[0]",
            context="2",
            branch=0,
            name="poem",
            sampling=SamplingSpec(max_tokens=64, temperature=0, stop=("\n",)),
        ),
        Gen(id="3[1]", context="2", branch=1, name="poem", constraint=ConstraintSpec.json_schema({"type": "string"})),
        Join(id="4", context="2", fork="2", name="poem", tips=("3[0]", "3[1]"), values=(Reference("3[0]"), None)),
        Select(id="k", context="4", choices=("a", "b"), scope="judge", control=("4",)),
        Switch(
            id="5",
            context="k",
            on=Reference("k"),
            arms=(
                Arm(("a",), Graph([Gen(id="6", name="x")], name="arm"), Reference("6")),
                Arm(None, Graph()),
            ),
        ),
        Loop(id="7", context="5", body=Graph([Gen(id="8")]), limit=2),
        Return(
            id="9",
            context="7",
            value=ListOf(
                (Constant([1, None]), DictOf((("k", Concat((Reference("4"), Constant("!")))),)), Constant(None))
            ),
        ),
    ],
    name="poems",
)
PRINTED = r"""graph "poems"
%topic = input "topic"
%1 = text "Write “it”\nabout " %topic|strip()|item(0) raw("<|x|>") <- %topic
%2 = fork 2 <- %1
%3[0] = gen "poem" sampling(max_tokens=64, temperature=0, stop=["\n"]) <- %2 branch 0
%3[1] = gen "poem" constraint(kind="json_schema", text=json({"type": "string"})) <- %2 branch 1
%4 = join "poem" fork=%2 tips=[%3[0], %3[1]] values=[%3[0], null] <- %2
%k = select choices=["a", "b"] <- %4 when %4 in "judge"
%5 = switch %k <- %k {
  case "a" => %6 named "arm" {
    %6 = gen "x"
  }
  else {
  }
}
%7 = loop limit=2 <- %5 {
  body {
    %8 = gen
  }
}
%9 = return [const([1, null]), {"k": concat(%4, "!")}, const(null)] <- %7
"""


def test_print_graph_is_one_line_per_node_and_reads_like_the_program():
    assert print_graph(POEMS) == PRINTED


def test_parse_printed_graph_gives_the_graph():
    assert same(parse(PRINTED), POEMS)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@given(GRAPHS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_parse_print_any_graph_round_trips_exactly(graph):
    text = print_graph(graph)
    assert same(parse(text), graph)
    assert print_graph(parse(text)) == text
    assert text.isprintable() or all(c.isprintable() or c in "\n" or ord(c) > 159 for c in text)


def test_print_graph_origins_are_comments_that_parse_away():
    graph = Graph([Gen(id="1", origin=Origin("a\nb.py", 3, "p"))])
    text = print_graph(graph, origins=True)
    assert text.endswith("%1 = gen  # p, a b.py:3\n")
    assert parse(text) == graph


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1, column 1"),
        ('graph "x"\n%1 = gen "a" max=', "line 2"),
        ('graph "x"\n%1 = telepathy', "its kind has to be one of"),
        ('graph "x"\n%1 = gen "a" color="red"', "unknown fields: color"),
        ('graph "x"\n%1 = gen "a" "b"', "does not take 2 values"),
        ('graph "x"\n%1 = fork "many"', "is not int"),
        ('graph "x"\n%1 = gen sampling(temperature=-1)', "out of range"),
        ('graph "x"\n%1 = gen retries=1 retries=2', "'retries' twice"),
        ('graph "x"\n%1 = gen\n%1 = gen', "is taken"),
        ('graph "x"\n%1 = text "\\q"', "broken string"),
        ('graph "x"\n%1 = join mode="some" fork=%1', "is not one of"),
        ('graph "x"\n%1 = return null', "null stands inside"),
        ('graph "x"\n%1 = fork', "size"),
    ],
)
def test_parse_broken_text_raises_format_error_that_says_where(text, words):
    with pytest.raises(FormatError, match="E2") as caught:
        parse(text)
    assert words in str(caught.value)


def test_parse_syntax_error_points_at_the_place_with_a_caret():
    with pytest.raises(FormatError) as caught:
        parse('graph "x"\n%1 = gen "a" <- 5')
    lines = str(caught.value).splitlines()
    assert lines[1].endswith('%1 = gen "a" <- 5')
    assert lines[2].index("^") == lines[1].index("5")


def test_print_graph_value_that_is_no_json_is_refused():
    with pytest.raises(FormatError, match="not JSON"):
        print_graph(Graph([Return(id="1", value=Constant(float("nan")))]))
