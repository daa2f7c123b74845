"""What Python can do with a text: more than 150 operations, each with what a trace makes of it.

    reference   the text itself, or a text around it
    operation   a recorded operation on it
    constant    the same for every text
    refused     the trace could not see it, and the export check refuses the graph
    break       everything else: the trace ends there

On a value of few possibilities (a select), whatever breaks here is a split.
"""

# ruff: noqa: UP030, UP031, UP032, E711, RUF015, RUF017, SIM300
# (each form of writing an operation is a case of its own)

from __future__ import annotations

import base64
import bisect
import builtins
import codecs
import collections
import copy
import csv
import datetime
import decimal
import difflib
import fnmatch
import fractions
import functools
import hashlib
import heapq
import html
import io
import itertools
import json
import locale
import math
import operator
import os.path
import pathlib
import pickle
import pprint
import re
import reprlib
import shlex
import string
import struct
import sys
import textwrap
import unicodedata
import urllib.parse
import uuid
import xml.sax.saxutils
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

TABLE = {"yes": "Y", "no": "N"}


class Operation(NamedTuple):
    name: str
    apply: Callable[[Any], Any]

    @property
    def expected(self) -> str:
        return next((kind for kind, names in EXPECTED.items() if self.name in names.split()), "break")


def _matched(v: Any) -> str:
    match v:
        case "yes":
            return "Y"
        case str():
            return "other"
    return "none"


def _unpacked(v: Any) -> str:
    a, b = v.split(",")
    return b + a


def _loop(v: Any) -> str:
    return "".join(c.upper() for c in v)


def _while(v: Any) -> str:
    n = 0
    while v != "yes" and n < 3:
        n += 1
    return str(n)


def _try_int(v: Any) -> str:
    try:
        return str(int(v))
    except ValueError:
        return "none"


def _jinja(v: Any, template: str = "<{{ v }}>") -> str:
    import jinja2

    return jinja2.Template(template).render(v=v)


def _csv_row(v: Any) -> str:
    out = io.StringIO()
    csv.writer(out).writerow([v, "x"])
    return out.getvalue()


def _stringio(v: Any) -> str:
    out = io.StringIO()
    out.write("a")
    out.write(v)
    return out.getvalue()


def _printed(v: Any) -> str:
    out = io.StringIO()
    print("a", v, file=out, end="")
    return out.getvalue()


EXPECTED = {
    "reference": """
        itself str_call fstring_one fstring_two fstring_str format_method format_named format_map percent_s
        percent_tuple percent_dict add radd add_twice iadd mul rmul concat_operator replace_by_itself
        join_with_it join_of_it join_of_it_alone bytes_call dict_value list_joined_later copy_copy copy_deepcopy
        json_roundtrip re_sub_function template_substitute string_formatter encode_roundtrip stringio printed
        jinja deque ordered_dict chain reduce sum_of_lists builtin_format
    """,
    "operation": """
        fstring_repr fstring_spec fstring_truncating format_call format_spec format_repr format_index
        percent_width_tuple percent_precision capitalize casefold center expandtabs expandtabs_named ljust lower
        lstrip removeprefix removesuffix replace replace_count rjust rstrip strip strip_lower swapcase title
        upper zfill slice_head slice_step slice_from repr_call dict_printed list_printed html_escape jinja_upper
        itemgetter methodcaller str_of_tuple
    """,
    "constant": """
        add_then_compare mul_zero eq_none eq_number eq_itself is_none isinstance_str
    """,
    "refused": """
        percent_dynamic_tuple replace_itself len_of_fstring contained_in_text fstring_contains fstring_equals fstring_startswith
        type_name re_match re_fullmatch re_search textwrap_dedent textwrap_shorten html_unescape base64_fstring
        sha256 crc32 unbound_eq fnmatch_it uuid_of struct_of strxfrm nested_format
    """,
}


def _listed(**operations: Callable[[Any], Any]) -> list[Operation]:
    return [Operation(name, apply) for name, apply in operations.items()]


OPERATIONS = _listed(
    itself=lambda v: v,
    str_call=lambda v: str(v),
    fstring_one=lambda v: f"{v}",
    fstring_two=lambda v: f"<{v}|{v}>",
    fstring_repr=lambda v: f"{v!r}",
    fstring_ascii=lambda v: f"{v!a}",
    fstring_str=lambda v: f"{v!s}",
    fstring_spec=lambda v: f"{v:>12}",
    fstring_truncating=lambda v: f"a{v:.3}b",
    fstring_nested_spec=lambda v: f"{'x':{v}}",
    format_call=lambda v: format(v, "*^20"),
    format_method=lambda v: "{} and {}".format(v, "x"),
    format_named=lambda v: "{v}".format(v=v),
    format_spec=lambda v: "{:<10}|".format(v),
    format_repr=lambda v: "{!r}".format(v),
    format_index=lambda v: "{0[0]}".format(v),
    format_map=lambda v: "{v}".format_map({"v": v}),
    format_as_template=lambda v: v.format("x"),
    format_map_as_template=lambda v: v.format_map({"x": "y"}),
    percent_s=lambda v: "a %s b" % v,
    percent_tuple=lambda v: "%s-%s" % (v, "x"),
    percent_r=lambda v: "%r" % v,
    percent_dict=lambda v: "%(v)s" % {"v": v},
    percent_width=lambda v: "%-10s|" % v,
    percent_width_tuple=lambda v: "%10s|%s" % (v, "x"),
    percent_precision=lambda v: "%.2s" % (v,),
    percent_dynamic=lambda v: "".join(["%-", "9s"]) % v,
    percent_dynamic_tuple=lambda v: "".join(["%-", "9s"]) % (v,),
    percent_d=lambda v: "%d" % v,
    percent_as_template=lambda v: v % (),
    add=lambda v: v + "!",
    radd=lambda v: "!" + v,
    add_twice=lambda v: v + v,
    add_then_upper=lambda v: (v + "!").upper(),
    add_then_compare=lambda v: "same" if v + "" == v else "other",
    iadd=lambda v: operator.iadd("a", v),
    mul=lambda v: v * 2,
    rmul=lambda v: 2 * v,
    mul_zero=lambda v: v * 0 + "x",
    concat_operator=lambda v: operator.concat("a", v),
    capitalize=lambda v: v.capitalize(),
    casefold=lambda v: v.casefold(),
    center=lambda v: v.center(20, "*"),
    expandtabs=lambda v: v.expandtabs(4),
    expandtabs_named=lambda v: v.expandtabs(tabsize=2),
    ljust=lambda v: v.ljust(12),
    lower=lambda v: v.lower(),
    lstrip=lambda v: v.lstrip(),
    removeprefix=lambda v: v.removeprefix("yes"),
    removesuffix=lambda v: v.removesuffix("s"),
    replace=lambda v: v.replace("a", "b"),
    replace_count=lambda v: v.replace("a", "b", 1),
    replace_by_itself=lambda v: "a-b".replace("-", v),
    replace_itself=lambda v: "yes or no".replace(v, "X"),
    rjust=lambda v: v.rjust(12, "."),
    rstrip=lambda v: v.rstrip("."),
    strip=lambda v: v.strip(),
    strip_lower=lambda v: v.strip().lower(),
    swapcase=lambda v: v.swapcase(),
    title=lambda v: v.title(),
    upper=lambda v: v.upper(),
    zfill=lambda v: v.zfill(8),
    slice_head=lambda v: v[:3],
    slice_step=lambda v: v[::-1],
    slice_from=lambda v: v[1:],
    slice_by_len=lambda v: v[: len(v) - 1],
    slice_of_fstring=lambda v: f"ab{v}cd"[:5],
    count=lambda v: v.count("a"),
    encode=lambda v: v.encode().hex(),
    endswith=lambda v: v.endswith("s"),
    find=lambda v: v.find("s"),
    index=lambda v: v.index(""),
    isalnum=lambda v: v.isalnum(),
    isalpha=lambda v: v.isalpha(),
    isascii=lambda v: v.isascii(),
    isdecimal=lambda v: v.isdecimal(),
    isdigit=lambda v: v.isdigit(),
    isidentifier=lambda v: v.isidentifier(),
    islower=lambda v: v.islower(),
    isnumeric=lambda v: v.isnumeric(),
    isprintable=lambda v: v.isprintable(),
    isspace=lambda v: v.isspace(),
    istitle=lambda v: v.istitle(),
    isupper=lambda v: v.isupper(),
    join_with_it=lambda v: v.join(["a", "b"]),
    join_of_it=lambda v: ", ".join([v, "x"]),
    join_of_it_alone=lambda v: ", ".join([v]),
    join_its_letters=lambda v: "-".join(v),
    partition=lambda v: v.partition(",")[0],
    rfind=lambda v: v.rfind("a"),
    rindex=lambda v: v.rindex(""),
    rpartition=lambda v: v.rpartition(",")[2],
    rsplit=lambda v: v.rsplit(",", 1)[0],
    split=lambda v: "|".join(v.split()),
    split_unpacked=_unpacked,
    splitlines=lambda v: v.splitlines(),
    startswith=lambda v: v.startswith("y"),
    translate=lambda v: v.translate({97: "b"}),
    translate_of_fstring=lambda v: f"<{v}>".translate({97: "b"}),
    eq=lambda v: v == "yes",
    eq_right=lambda v: "yes" == v,
    ne=lambda v: v != "yes",
    eq_none=lambda v: v == None,
    eq_number=lambda v: v == 3,
    eq_itself=lambda v: v == v,
    is_none=lambda v: v is None,
    lt=lambda v: v < "m",
    le=lambda v: v <= "m",
    gt=lambda v: v < "m",
    ge=lambda v: v >= "m",
    bool_call=lambda v: bool(v),
    not_it=lambda v: not v,
    or_default=lambda v: v or "default",
    and_then=lambda v: v and "some",
    ternary=lambda v: "full" if v else "empty",
    hash_call=lambda v: hash(v) == 0,
    len_call=lambda v: len(v),
    len_of_fstring=lambda v: len(f"ab{v}"),
    contains=lambda v: "a" in v,
    contained_in_list=lambda v: v in ["yes", "no"],
    contained_in_tuple=lambda v: v in ("yes", "no"),
    contained_in_set=lambda v: v in {"yes", "no"},
    contained_in_text=lambda v: v in "yes or no",
    fstring_contains=lambda v: "err" in f"v {v}",
    fstring_equals=lambda v: f"<{v}>" == "<yes>",
    fstring_startswith=lambda v: f"{v}!!".startswith("y"),
    item=lambda v: v[0] if v else "",
    first_letter=lambda v: (v + "x")[0],
    iteration=_loop,
    list_call=lambda v: list(v),
    tuple_call=lambda v: tuple(v),
    set_call=lambda v: sorted(set(v)),
    sorted_call=lambda v: sorted(v),
    reversed_call=lambda v: "".join(reversed(v)),
    enumerate_call=lambda v: list(enumerate(v)),
    zip_call=lambda v: list(zip(v, v, strict=True)),
    map_call=lambda v: list(map(ord, v)),
    starred=lambda v: [*v],
    any_call=lambda v: any(v),
    max_letters=lambda v: max(v + "a"),
    max_of_two=lambda v: max(v, "m"),
    min_key=lambda v: min([v, "m"], key=len),
    int_call=_try_int,
    int_base=lambda v: int("0" + v.strip("x"), 16),
    float_call=lambda v: float(v),
    complex_call=lambda v: complex(v),
    ord_call=lambda v: ord(v),
    repr_call=lambda v: repr(v),
    ascii_call=lambda v: ascii(v),
    bytes_call=lambda v: bytes(v, "utf8").decode("utf8"),
    bytes_latin=lambda v: bytes(v, "utf8").decode("latin1"),
    sizeof=lambda v: sys.getsizeof(v) > 0,
    dict_get=lambda v: TABLE.get(v, "?"),
    dict_item=lambda v: TABLE[v],
    dict_key=lambda v: {v: 1},
    dict_value=lambda v: {"k": v}["k"],
    dict_printed=lambda v: str({"k": v}),
    list_printed=lambda v: str([v, "x"]),
    list_index=lambda v: ["yes", "no"].index(v),
    list_count=lambda v: ["yes", "no"].count(v),
    list_sorted=lambda v: sorted([v, "m"]),
    list_joined_later=lambda v: "".join(["a", v, "b"]),
    set_member=lambda v: len({v, "yes"}),
    as_index=lambda v: "abc"[v],
    range_of=lambda v: list(range(int(v))),
    match_statement=_matched,
    while_loop=_while,
    getattr_default=lambda v: getattr(str, v, "none"),
    isinstance_str=lambda v: isinstance(v, str),
    type_name=lambda v: type(v).__name__,
    copy_copy=lambda v: copy.copy(v),
    copy_deepcopy=lambda v: copy.deepcopy([v])[0],
    pickled=lambda v: pickle.loads(pickle.dumps(v)),
    json_dumps=lambda v: json.dumps({"k": v}),
    json_dumps_unicode=lambda v: json.dumps({"k": v}, ensure_ascii=False),
    json_dumps_indent=lambda v: json.dumps([v], indent=1),
    json_loads=lambda v: json.loads(v),
    json_roundtrip=lambda v: json.loads(json.dumps({"k": v}))["k"],
    json_key=lambda v: json.dumps({v: 1}),
    re_match=lambda v: bool(re.match("yes", v)),
    re_fullmatch=lambda v: re.fullmatch(r"\w+", v) is not None,
    re_search=lambda v: re.search(r"\d", v) is None,
    re_sub=lambda v: re.sub("a", "b", v),
    re_sub_with_it=lambda v: re.sub("-", v, "a-b"),
    re_sub_function=lambda v: re.sub("-", lambda _: v, "a-b"),
    re_split=lambda v: re.split(r"\s+", v),
    re_findall=lambda v: re.findall(r"\w+", v),
    re_escape=lambda v: re.escape(v),
    re_compile_of_it=lambda v: bool(re.match(re.escape(v), "yes")),
    textwrap_fill=lambda v: textwrap.fill(v, 20),
    textwrap_fill_fstring=lambda v: textwrap.fill(f"text {v} text", 20),
    textwrap_dedent=lambda v: textwrap.dedent(f"    {v}\n    x"),
    textwrap_indent=lambda v: textwrap.indent(f"{v}\nx", "> "),
    textwrap_shorten=lambda v: textwrap.shorten(f"text {v}", 12),
    template_substitute=lambda v: string.Template("<$v>").substitute(v=v),
    template_of_it=lambda v: string.Template(v).safe_substitute(x="y"),
    string_formatter=lambda v: string.Formatter().format("{v}", v=v),
    string_capwords=lambda v: string.capwords(v),
    html_escape=lambda v: html.escape(v),
    html_escape_fstring=lambda v: html.escape(f"<{v}>"),
    html_unescape=lambda v: html.unescape(f"{v};"),
    xml_escape=lambda v: xml.sax.saxutils.escape(f"{v} "),
    url_quote=lambda v: urllib.parse.quote(v),
    url_quote_fstring=lambda v: urllib.parse.quote(f"a/{v}"),
    url_encode=lambda v: urllib.parse.urlencode({"q": v}),
    url_parse=lambda v: urllib.parse.urlparse(f"http://h/{v}").path,
    base64_fstring=lambda v: base64.b64encode(f"a{v}".encode()).decode(),
    sha256=lambda v: hashlib.sha256(f"a{v}".encode()).hexdigest(),
    crc32=lambda v: zlib.crc32(f"a{v}".encode()),
    codecs_encode=lambda v: codecs.encode(f"a{v}", "rot13"),
    encode_ignore=lambda v: f"a{v}".encode("ascii", "ignore").decode(),
    encode_xml=lambda v: f"a{v}".encode("ascii", "xmlcharrefreplace").decode(),
    encode_roundtrip=lambda v: f"a{v}".encode().decode(),
    normalize_nfc=lambda v: unicodedata.normalize("NFC", f"a{v}"),
    normalize_nfkc=lambda v: unicodedata.normalize("NFKC", f"a{v}"),
    shlex_quote=lambda v: shlex.quote(v),
    shlex_split=lambda v: shlex.split(f"a {v}"),
    path_of=lambda v: str(pathlib.PurePosixPath("a") / v),
    path_join=lambda v: os.path.join("a", v),
    path_basename=lambda v: os.path.basename(f"a/{v}"),
    pprint_it=lambda v: pprint.pformat([v]),
    reprlib_it=lambda v: reprlib.repr(v),
    csv_writer=_csv_row,
    csv_reader=lambda v: next(csv.reader([f"a,{v}"])),
    stringio=_stringio,
    printed=_printed,
    jinja=_jinja,
    jinja_upper=lambda v: _jinja(v, "{{ v|upper }}"),
    jinja_if=lambda v: _jinja(v, "{% if v == 'yes' %}Y{% else %}N{% endif %}"),
    jinja_loop=lambda v: _jinja(v, "{% for c in v %}{{ c }}-{% endfor %}"),
    counter=lambda v: collections.Counter(v).most_common(1),
    deque=lambda v: list(collections.deque([v, "x"]))[0],
    ordered_dict=lambda v: list(collections.OrderedDict(a=v).values())[0],
    chain=lambda v: "".join(itertools.chain([v], ["x"])),
    chain_letters=lambda v: "".join(itertools.chain(v, "x")),
    partial=lambda v: functools.partial(str.upper, v)(),
    reduce=lambda v: functools.reduce(operator.add, [v, "x"]),
    itemgetter=lambda v: operator.itemgetter(slice(0, 2))(v),
    methodcaller=lambda v: operator.methodcaller("upper")(v),
    lru_cache=lambda v: functools.lru_cache(lambda x: x)(v),
    unbound_upper=lambda v: str.upper(v),
    unbound_eq=lambda v: str.__eq__("yes", v),
    heap=lambda v: heapq.nsmallest(1, [v, "m"]),
    bisect_it=lambda v: bisect.bisect(["m"], v),
    difflib_ratio=lambda v: difflib.get_close_matches(v, ["yes", "no"]),
    fnmatch_it=lambda v: fnmatch.fnmatch(v, "y*"),
    decimal_of=lambda v: decimal.Decimal(v),
    fraction_of=lambda v: fractions.Fraction(v),
    date_of=lambda v: datetime.date.fromisoformat(v),
    uuid_of=lambda v: uuid.uuid5(uuid.NAMESPACE_DNS, v),
    math_of=lambda v: math.floor(float(v)),
    struct_of=lambda v: struct.pack("4s", f"{v}1".encode()).hex(),
    strxfrm=lambda v: locale.strcoll(v, "m") < 0,
    eval_it=lambda v: eval(v, {"yes": 1}),
    nested_format=lambda v: f"{f'<{v}>':>12}",
    str_of_tuple=lambda v: f"{(v, 1)}",
    sum_of_lists=lambda v: sum([[v], ["x"]], [])[0],
    builtin_format=lambda v: builtins.format(v),
)
