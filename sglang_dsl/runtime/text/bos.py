"""The one rule about the token that begins a text."""

from __future__ import annotations

from collections.abc import Sequence

from .protocol import Tokenizer


def with_bos(token_ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt's beginning, with a BOS in front if the tokenizer asks for one and none is there yet.

    It is counted by id, whoever put it there: template, caller or this function (which may be applied again). What a
    template repeats on purpose stays.
    """
    bos_id = tokenizer.bos_id
    if bos_id is None or not tokenizer.adds_bos or (token_ids and token_ids[0] == bos_id):
        return list(token_ids)
    return [bos_id, *token_ids]
