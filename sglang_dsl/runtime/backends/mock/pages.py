"""The mock's KV pool: each slot remembers which token it holds, so that wrong paging is seen at once."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ....errors import IntegrityError
from ...cache.keys import TokenIds, TokenStore
from ...schedule.step import Row, StepPlan

REMEMBERED_BRANCHINGS = 4  # how far up a prompt's branchings it is looked for what is known of its pages


class TokenPages:
    """What the pool's tensors are in a real worker. Owner: the worker."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}  # (page, offset) -> (position, token)
        self._sound: WeakKeyDictionary[TokenStore, list[int]] = WeakKeyDictionary()  # pages that held their prompts
        self._sound_pages: set[int] = set()

    def write(self, plan: StepPlan) -> None:
        """Copies first, then all new tokens, then the mirrors: as a layer scatters before it attends."""
        for copy in plan.copies:
            self._note_write(copy.target)
            for offset in range(copy.tokens):
                self._slots[copy.target, offset] = self._slots[copy.source, offset]
        for row in plan.rows:
            for position, token in enumerate(row.token_ids, row.start):
                slot = self._slot(row, position)
                self._note_write(slot[0])
                self._slots[slot] = (position, token)
        for mirror in plan.mirrors:
            row = plan.rows[mirror.row]
            token = row.token_ids[mirror.position - row.start]
            self._note_write(mirror.page)
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

    def sound_until(self, row: Row, prompt_ids: Sequence[int]) -> int:
        """Up to which position the row's pages are known to hold this prompt."""
        ids = prompt_ids
        for _ in range(REMEMBERED_BRANCHINGS):
            if not isinstance(ids, TokenIds):
                break
            pages = self._sound.get(ids.store)
            if pages is not None:
                count = min(len(pages), len(ids) // self._size, row.start // self._size)
                return count * self._size if row.pages[:count] == pages[:count] else 0
            ids = ids.store.above or ()
        return 0

    def note_sound(self, row: Row, prompt_ids: Sequence[int], start: int) -> None:
        """What stood before the row in its pages holds this prompt (up to `start` that was known). Not its own pages: they may be
        given back at once, where the tree has the same tokens.
        """
        if isinstance(prompt_ids, TokenIds):
            pages = list(row.pages[: min(row.start, len(prompt_ids)) // self._size])
            self._sound[prompt_ids.store] = pages
            self._sound_pages.update(pages[start // self._size :])

    def _note_write(self, page: int) -> None:
        if page in self._sound_pages:
            self._sound_pages.clear()
            self._sound.clear()

    def _slot(self, row: Row, position: int) -> tuple[int, int]:
        return row.pages[position // self._size], position % self._size
