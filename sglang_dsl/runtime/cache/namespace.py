"""Which computations may ever be shared: a typed tuple, hashed field by field."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property

from ...ir.specs import utf8_text


@dataclass(frozen=True)
class Namespace:
    """Two requests share cached state only if every field is equal. "" means none, and is a value like any other.

    The digest covers field names and lengths, so ("a", "bc") and ("ab", "c") differ.

    Raises:
        SpecError: a field that is no text.
    """

    model: str = ""  # fingerprint of weights file and architecture
    weight_version: str = "0"
    adapter: str = ""  # id and version
    tenant_salt: str = ""
    user_key: str = ""
    kv_layout: str = ""  # dtype and layout of the pool
    band: str = (
        ""  # lengths of sequences whose state is computed alike; "" where it does not depend on the whole length
    )

    def of_band(self, band: int) -> Namespace:
        """The same space for sequences of another band of lengths. Some models rotate every position by factors that the
        length of the whole sequence decides, so state made at one length is wrong at another.
        """
        name = str(band) if band else ""
        return self if name == self.band else replace(self, band=name)

    def __post_init__(self) -> None:
        for f in fields(self):
            utf8_text(f"namespace field {f.name}", getattr(self, f.name))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the tagged, length-prefixed fields."""
        h = hashlib.sha256()
        for f in fields(self):
            value = getattr(self, f.name).encode()
            h.update(f"{f.name}:{len(value)}:".encode())
            h.update(value)
        return h.digest()
