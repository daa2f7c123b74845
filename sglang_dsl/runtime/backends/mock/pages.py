"""The mock's KV pool: each slot remembers which token it holds, so that wrong paging is seen at once."""

from __future__ import annotations

from ....errors import IntegrityError
from ...schedule.step import Row, StepPlan


class TokenPages:
    """What the pool's tensors are in a real worker. Owner: the worker."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}  # (page, offset) -> (position, token)

    def write(self, plan: StepPlan) -> None:
        """Copies first, then all new tokens, then the mirrors: as a layer scatters before it attends."""
        for copy in plan.copies:
            for offset in range(copy.tokens):
                self._slots[copy.target, offset] = self._slots[copy.source, offset]
        for row in plan.rows:
            for position, token in enumerate(row.token_ids, row.start):
                self._slots[self._slot(row, position)] = (position, token)
        for mirror in plan.mirrors:
            row = plan.rows[mirror.row]
            token = row.token_ids[mirror.position - row.start]
            self._slots[mirror.page, mirror.offset] = (mirror.position, token)

    def read(self, row: Row, start: int, end: int) -> list[int]:
        """The tokens a row sees at positions [start, end).

        Raises:
            IntegrityError: a page holds another position than the row's table says.
        """
        tokens: list[int] = []
        for position in range(start, end):
            held = self._slots.get(self._slot(row, position))
            if held is None or held[0] != position:
                raise IntegrityError(
                    f"sequence {row.seq_id} reads position {position} from page {row.pages[position // self._size]}, "
                    f"which holds {'nothing' if held is None else f'position {held[0]}'}"
                )
            tokens.append(held[1])
        return tokens

    def _slot(self, row: Row, position: int) -> tuple[int, int]:
        return row.pages[position // self._size], position % self._size
