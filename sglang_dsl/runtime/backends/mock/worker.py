"""The mock's worker: a scripted model without tensors, with real pages, real constraints, and time from a cost model.

Text is a token per word or scripted piece. A reply is played token by token under its call's constraint. Each slot of a page remembers
which token it holds, so that wrong paging is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from weakref import WeakKeyDictionary

from ....errors import IntegrityError, ScriptError
from ....ir.execution import TokenScore
from ....ir.specs import ConstraintSpec
from ...cache.keys import TokenIds, TokenStore
from ...constrain.compile import CompiledConstraint, PythonMatcher, compile_constraint
from ...schedule.step import (
    OpenSequence,
    Row,
    Sampled,
    SamplePoint,
    Scored,
    ScorePoint,
    StepPlan,
    StepResult,
    WorkerInfo,
)
from ...text.tokenizer import END_OF_TEXT, TURN_END, TURN_START, ChatMlTemplate, ChatTemplate, PieceTokenizer, Tokenizer
from .calls import SCORED_CONTEXT, Piece, Reply, token_logprob

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
        size, slots, written = self._size, self._slots, set[int]()
        for copy in plan.copies:
            written.add(copy.target)
            for offset in range(copy.tokens):
                slots[copy.target, offset] = slots[copy.source, offset]
        for row in plan.rows:
            for position, token in enumerate(row.token_ids, row.start):
                page = row.pages[position // size]
                written.add(page)
                slots[page, position % size] = (position, token)
        for mirror in plan.mirrors:
            row = plan.rows[mirror.row]
            written.add(mirror.page)
            slots[mirror.page, mirror.offset] = (mirror.position, row.token_ids[mirror.position - row.start])
        if not written.isdisjoint(self._sound_pages):
            self._sound_pages.clear()
            self._sound.clear()

    def read(self, row: Row, start: int, end: int) -> list[int]:
        """The tokens a row sees at positions [start, end).

        Raises:
            IntegrityError: a page holds another position than the row's table says.
        """
        tokens: list[int] = []
        for position in range(start, end):
            page = row.pages[position // self._size]
            held = self._slots.get((page, position % self._size))
            if held is None or held[0] != position:
                raise IntegrityError(
                    f"sequence {row.seq_id} reads position {position} from page {page}, "
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


SILENCE = "<|silence|>"  # a token without text: what a slow model says


class MockTokenizer(PieceTokenizer):
    """A PieceTokenizer that can also show control tokens."""

    def __init__(self) -> None:
        control = (END_OF_TEXT, TURN_START, TURN_END, SILENCE)
        super().__init__(control)
        self.silence_id = self.control_id(SILENCE)
        self._shown = {self.control_id(text): text.encode() for text in control if text != SILENCE}
        self._bytes: WeakKeyDictionary[TokenStore, tuple[int, bytearray]] = WeakKeyDictionary()

    def count(self, text: str) -> int:
        """Tokens of a content text on its own."""
        return len(self.encode(text))

    def show(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens included. Of a prompt that grows, what was shown before is kept."""
        if not isinstance(token_ids, TokenIds):
            return self._spelled(token_ids).decode("utf-8", "replace")
        count, known = self._bytes.get(token_ids.store, (0, bytearray()))
        if count > len(token_ids):
            return self._spelled(token_ids.tokens()).decode("utf-8", "replace")
        fresh = self._spelled(token_ids.tokens()[count:] if count else token_ids.tokens())
        known = known + fresh
        self._bytes[token_ids.store] = (len(token_ids), known)
        return known.decode("utf-8", "replace")

    def _spelled(self, token_ids: Sequence[int]) -> bytes:
        shown = self._shown
        return b"".join(shown[i] if i in shown else self.token_bytes(i) for i in token_ids)


class MockText:
    """Implements `TextModel`."""

    def __init__(self, tokenizer: MockTokenizer, template: ChatTemplate | None = None) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.template: ChatTemplate = template or ChatMlTemplate()


_SILENT = Piece("")  # a token that the script says nothing about: silence, a word of a text, the end


class ReplyPlayback:
    """One sequence, and the reply that it says. Owner: the worker.

    masked: where the reply breaks its constraint, it is cut and completed by an allowed text, as a model's would be.
    """

    def __init__(self, opened: OpenSequence, reply: Reply, tokenizer: MockTokenizer, *, masked: bool) -> None:
        self.opened = opened
        self.generated = 0
        self.tokens_so_far = list(opened.prompt_ids)
        self._reply = reply
        self._tokenizer = tokenizer
        self._masked = masked
        constraint = None if reply.unchecked else opened.constraint
        self._compiled = None if constraint is None else compile_constraint(constraint)
        self._matcher = None if self._compiled is None else self._compiled.matcher(tokenizer.token_bytes)
        self._silent = min(reply.silent_tokens, opened.sampling.most_tokens)
        self._tokens = [(tokenizer.silence_id, _SILENT)] * self._silent
        if reply.pieces is None:
            self._tokens += [(token_id, _SILENT) for token_id in tokenizer.encode(reply.text)]
        else:
            self._tokens += [(tokenizer.intern(piece.raw), piece) for piece in reply.pieces]

    def replay(self, token_id: int) -> None:
        """A token generated before the sequence was set aside."""
        if self._matcher is not None:
            self._step(self._matcher, self.generated)
        self.tokens_so_far.append(token_id)
        self.generated += 1

    def next(self, index: int) -> tuple[int, Piece, bool]:
        """The token at `index`, and whether its constraint allows nothing more.

        Raises:
            ScriptError: the reply breaks the call's constraint. Or whatever error the script asks for.
        """
        if self._reply.error is not None and index >= self._reply.error_after:
            raise self._reply.error
        ended = self._matcher is not None and self._step(self._matcher, index)
        token_id, piece = self._tokens[index] if index < len(self._tokens) else (self._tokenizer.eos_id, _SILENT)
        self.tokens_so_far.append(token_id)
        self.generated += 1
        return token_id, piece, ended

    def _step(self, matcher: PythonMatcher, index: int) -> bool:
        """Step the matcher over token `index`; whether nothing may follow."""
        if self._compiled is None or index < self._silent:
            return False
        if index >= len(self._tokens):
            if matcher.may_end:
                return False
            self._complete(self._compiled, index, "it ends before the constraint is complete")
        elif matcher.accept(self._tokens[index][0]):
            return matcher.must_end
        else:
            token_id, piece = self._tokens[index]
            said = self._tokenizer.token_bytes(token_id) if piece is _SILENT else piece.raw
            self._complete(self._compiled, index, f"token {index} ({said!r}) is not allowed there")
        if index < len(self._tokens):
            matcher.accept(self._tokens[index][0])
        return matcher.must_end

    def _complete(self, compiled: CompiledConstraint, index: int, why: str) -> None:
        """Put an allowed text in place of what is left from token `index` on."""
        if not self._masked:
            raise self._broken(why)
        said = b"".join(self._tokenizer.token_bytes(token_id) for token_id, _ in self._tokens[self._silent : index])
        try:
            rest = compiled.complete(said.decode(), Random(index))
        except ValueError as error:  # cut inside a character: only the script's author knows what it should be
            raise self._broken(why) from error
        self._tokens[index:] = [(token_id, _SILENT) for token_id in self._tokenizer.encode(rest)]

    def _broken(self, why: str) -> ScriptError:
        label, constraint = self.opened.label, self.opened.constraint
        said = self._reply.text or [piece.raw for _, piece in self._tokens]
        return ScriptError(
            f"the scripted reply {said!r} to {label.name or label.node_id!r} breaks its constraint: {why}; "
            f"the constraint is {constraint.text[:120] if constraint else ''}",
            hint="script a valid reply, use malformed(...) to send it anyway, or mock(masked=True) to have it cut as a "
            "model's would be",
        )


LOOKED_BACK_TOKENS = 4 * SCORED_CONTEXT + 4  # hold as many characters as the little language model looks at

LanguageModel = Callable[[str, str], float]  # (text so far, text of the next token) -> natural-log probability


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Virtual seconds of a step: so much for itself, and for each prompt token and each sampled token."""

    step_s: float = 0.01
    prompt_token_s: float = 0.0
    sampled_token_s: float = 0.0

    def seconds(self, plan: StepPlan) -> float:
        """What `plan` takes."""
        sampled = len(plan.samples)
        tokens = sum(len(row.token_ids) for row in plan.rows)
        return self.step_s + self.prompt_token_s * max(tokens - sampled, 0) + self.sampled_token_s * sampled


class MockWorker:
    """Plays the replies that were laid out for its requests, token by token.

    Every row is read back through its page table: a row that would see other tokens than its own prompt fails the step. What was read
    back for the prompt that this one continues, over the same pages, is not read again until one of them is written.
    """

    def __init__(
        self,
        info: WorkerInfo,
        tokenizer: MockTokenizer,
        *,
        cost: CostModel,
        language_model: LanguageModel,
        masked: bool,
    ) -> None:
        self.info = info
        self._tokenizer = tokenizer
        self._cost = cost
        self._language_model = language_model
        self._masked = masked
        self._pages = TokenPages(info.page_size)
        self.replies: dict[
            str, Reply
        ] = {}  # by request: what it will be answered once it runs; any thread adds and removes
        self._playing: dict[int, ReplyPlayback] = {}

    def prepare(self, constraint: ConstraintSpec) -> Future[None]:
        """Compile a constraint, off the engine's thread; the future raises ConstraintError. Compiled once, reused."""
        future: Future[None] = Future()
        compile_constraint(constraint)
        future.set_result(None)
        return future

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A fault of one row is that row's `Sampled.error`; what this raises fails every row of the plan."""
        for seq_id in plan.closes:
            self._playing.pop(seq_id, None)
        for opened in plan.opens:
            self._playing[opened.seq_id] = self._open(opened)
        self._pages.write(plan)
        self._check_rows(plan)
        samples = [self._sample(point) for point in plan.samples]
        scores = [self._score(plan, point) for point in plan.scores]
        return StepResult(samples, scores, self._cost.seconds(plan))

    def close(self) -> None:
        """Nothing to release."""

    def _open(self, opened: OpenSequence) -> ReplyPlayback:
        reply = self.replies.get(opened.request_id) or Reply()
        playing = ReplyPlayback(opened, reply, self._tokenizer, masked=self._masked)
        for token_id in opened.generated:
            playing.replay(token_id)
        return playing

    def _check_rows(self, plan: StepPlan) -> None:
        """A sequence's first row and its long ones are read back whole; in steady decoding the last token is enough."""
        for row in plan.rows:
            playing = self._playing.get(row.seq_id)
            end = row.start + len(row.token_ids)
            if playing is None or end > len(playing.tokens_so_far):
                continue
            whole = len(row.token_ids) > 1 or not playing.generated
            prompt_ids = playing.opened.prompt_ids
            start = self._pages.sound_until(row, prompt_ids) if whole else row.start
            if self._pages.read(row, start, end) != playing.tokens_so_far[start:end]:
                raise IntegrityError(f"sequence {row.seq_id} reads pages that hold another prompt")
            if whole:
                self._pages.note_sound(row, prompt_ids, start)

    def _sample(self, point: SamplePoint) -> Sampled:
        playing = self._playing[point.seq_id]
        try:
            token_id, piece, ended = playing.next(point.generated)
        except Exception as error:  # noqa: BLE001 - an error the script asked for: it is this row's alone
            return Sampled(point.seq_id, -1, error=error)
        score = self._token_score(token_id, piece) if playing.opened.sampling.logprobs is not None else None
        return Sampled(point.seq_id, token_id, ended, score)

    def _token_score(self, token_id: int, piece: Piece) -> TokenScore:
        top = tuple((self._tokenizer.intern(raw), logprob, _raw(raw)) for raw, logprob in piece.top)
        return TokenScore(
            token_id=token_id, logprob=piece.logprob, token_bytes=self._tokenizer.token_bytes(token_id), top=top
        )

    def _score(self, plan: StepPlan, point: ScorePoint) -> Scored:
        row = plan.rows[point.row]
        end = row.start + point.offset + 1
        first = max(0, end - LOOKED_BACK_TOKENS) if self._language_model is token_logprob else 0
        before = self._tokenizer.show(self._pages.read(row, first, end))
        return Scored(point.key, [self._language_model(before, self._tokenizer.show([t])) for t in point.token_ids])


def _raw(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece
