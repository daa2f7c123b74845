"""What the tree is keyed by: token ids as bytes, and the namespace of computations that may be shared at all.

Ids are packed into bytes so that whole prefixes are compared by `memcmp` and not by a loop per token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import overload
from zlib import crc32

from ...errors import SpecError
from ...ir.specs import utf8_text

TOKEN_BYTES = 4
COPIED_BRANCHINGS = 16  # a prompt that branched off so often begins with a copy of what it branched off from


class TokenStore:
    """Ids and their key, which prompts that continue each other share: each is a longer beginning of it. Append-only.

    above: the prompt that this one branched off from. offset: how many of its ids stand there and not here.
    """

    __slots__ = ("__weakref__", "above", "branchings", "key", "offset", "tokens")

    def __init__(self, above: TokenIds | None = None) -> None:
        self.above = above
        self.branchings: int = 0 if above is None else above.store.branchings + 1
        self.tokens: list[int] = []
        self.key = bytearray()
        self.offset = 0 if above is None else len(above)
        if above is not None and self.branchings >= COPIED_BRANCHINGS:
            self.branchings, self.offset = 0, 0
            self.tokens, self.key = above.tokens(), bytearray(above.packed())


class TokenIds(Sequence[int]):
    """Token ids that are continued rather than copied. Immutable; what continues one shares its ids with it.

    Equal to every sequence of the same ids; to look something up by them, take their `AlikeIds`.
    """

    __slots__ = ("_crc", "_length", "_size", "highest", "store")

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.store = TokenStore()
        self._size = self._length = self._crc = 0
        self.highest = -1
        self._grow(tuple(token_ids))

    def then(self, token_ids: Sequence[int]) -> TokenIds:
        """These ids and then those. Costs what is new, and a fixed amount."""
        if not token_ids:
            return self
        longer = TokenIds.__new__(TokenIds)
        whole = self._size == len(self.store.tokens)
        longer.store = self.store if whole else TokenStore(self)
        longer._size = len(longer.store.tokens)
        longer._length, longer._crc, longer.highest = self._length, self._crc, self.highest
        longer._grow(token_ids)
        return longer

    def _grow(self, token_ids: Sequence[int]) -> None:
        more = pack(token_ids)
        self.highest = max(self.highest, max(token_ids, default=-1))
        self.store.tokens += token_ids
        self.store.key += more
        self._size += len(token_ids)
        self._length += len(token_ids)
        self._crc = crc32(more, self._crc)

    def tokens(self) -> list[int]:
        """All ids, in a list of one's own."""
        store = self.store
        if store.above is None or not store.offset:
            return store.tokens[: self._size]
        found = [store.tokens[: self._size]]
        while store.offset and store.above is not None:
            above = store.above
            store = above.store
            found.append(store.tokens[: above._size])
        tokens = found.pop()
        while found:
            tokens += found.pop()
        return tokens

    def packed(self) -> bytes:
        """Their key: see `pack`."""
        store = self.store
        found = [store.key[: self._size * TOKEN_BYTES]]
        while store.offset and store.above is not None:
            above = store.above
            store = above.store
            found.append(store.key[: above._size * TOKEN_BYTES])
        return b"".join(reversed(found))

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, int) and 0 < -index <= self._size:
            return self.store.tokens[self._size + index]
        return self.tokens()[index]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.tokens())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self is other or (
                (self._length, self._crc) == (other._length, other._crc) and self.packed() == other.packed()
            )
        return self.tokens() == list(other) if isinstance(other, (tuple, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TokenIds({self.tokens()})"


class AlikeIds:
    """Token ids as the key of a dict: equal for equal ids, and of a hash that is known already."""

    __slots__ = ("_ids",)

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = token_ids if isinstance(token_ids, TokenIds) else TokenIds(token_ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AlikeIds) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash((self._ids._length, self._ids._crc))


def pack(token_ids: Iterable[int]) -> bytes:
    """Four bytes per token, in the machine's order.

    Raises:
        SpecError: an id is negative, too large, or not a whole number.
    """
    try:
        return array("I", token_ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise SpecError(
            f"token ids are not all whole numbers from 0 to 2^32-1: {error}", hint="check the ids"
        ) from error


def common_bytes(left: bytes | bytearray, right: bytes, right_start: int, right_end: int) -> int:
    """Length of the common prefix of `left` and `right[right_start:right_end]`, in bytes.

    Halving: each round compares the undecided half by slices, so the bytes looked at are about twice the answer.
    """
    high = min(len(left), right_end - right_start)
    if high == len(left):
        if right.startswith(left, right_start):  # nothing is copied
            return high
    elif left[:high] == right[right_start : right_start + high]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[right_start + low : right_start + middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Namespace:
    """Two requests share cached state only if every field is equal. "" means none, and is a value like any other.

    Raises:
        SpecError: a field that is no text.
    """

    model: str = ""  # fingerprint of weights file and architecture
    weight_version: str = "0"
    adapter: str = ""  # id and version
    tenant_salt: str = ""
    user_key: str = ""
    kv_layout: str = ""  # dtype and layout of the pool
    band: str = ""  # lengths whose state is computed in the same way; "" where it does not depend on the whole length

    def of_band(self, band: int) -> Namespace:
        """The same space for sequences of another band of lengths. Some models rotate every position by factors that the
        length of the whole sequence decides, so state made at one length is wrong at another.
        """
        name = str(band) if band else ""
        return self if name == self.band else replace(self, band=name)

    def __post_init__(self) -> None:
        for f in fields(self):
            utf8_text(f"namespace field {f.name}", getattr(self, f.name))
