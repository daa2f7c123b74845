"""String formats of JSON schema as grammars: sound for RFC 3339 and for Python's own parsers, sometimes narrower than the RFC."""

from __future__ import annotations

from .grammar import Expr, chars
from .json_text import PLAIN
from .regex import ECMA_AND_PYTHON, search_expr

_LEAP = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|1[26]|[3579][26])00)"
_DATE = (
    r"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,4}}"

# Source: RFC 3339, appendix A (duration): units in order, none left out between the first and the last.
_N = "[0-9]{1,6}"
_DATE_PART = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_TIME_PART = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_N}W|{_DATE_PART}(?:{_TIME_PART})?|{_TIME_PART})",
    "email": rf"[A-Za-z0-9](?:[A-Za-z0-9_+-]{{0,30}}[A-Za-z0-9])?(?:\.[A-Za-z0-9]{{1,20}}){{0,3}}@(?:{_LABEL}\.){{1,3}}[a-z]{{2,10}}",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": r"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}",
    "hostname": _HOST,
    "uri": rf"https?://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~-]{{0,60}}){{0,8}}(?:\?[A-Za-z0-9=&._~-]{{0,120}})?",
}
# Formats that say how a value is to be shown or stored, and restrict no text.
ANNOTATIONS = frozenset({"password", "binary", "byte", "path", "file-path", "directory-path"})


def format_expr(name: str) -> Expr | None:
    """The content of strings of this format (without quotes); None if the format is not known."""
    pattern = _PATTERNS.get(name)
    return None if pattern is None else search_expr(f"^(?:{pattern})$", ECMA_AND_PYTHON, lambda m: chars(m & PLAIN))


def known_formats() -> list[str]:
    """Names of the formats that are enforced."""
    return sorted(_PATTERNS)
