"""Token ids as bytes, so that whole prefixes are compared by `memcmp` and not by a loop per token."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ...errors import SpecError

TOKEN_BYTES = 4


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


def common_bytes(left: bytes, right: bytes, right_start: int, right_end: int) -> int:
    """Length of the common prefix of `left` and `right[right_start:right_end]`, in bytes.

    Halving: each round compares the undecided half by slices, so the bytes looked at are about twice the answer.
    """
    high = min(len(left), right_end - right_start)
    if left[:high] == right[right_start : right_start + high]:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[right_start + low : right_start + middle]:
            low = middle
        else:
            high = middle
    return low
