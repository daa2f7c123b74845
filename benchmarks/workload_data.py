"""The inputs of `benchmarks/workloads.py`: written for this project, or read from workload files of the same shape.

Prompts are full ChatML texts, to be appended with `raw(...)`. `repetition` changes one line at the head of every shared
prefix, so that a second repetition starts with a cold cache and has as many tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.support_desk import Answer, preamble, tickets


@dataclass(frozen=True, slots=True)
class FanOut:
    """W1 and W2: one prefix, many suffixes, `max_new` tokens each."""

    prefix: str
    suffixes: tuple[str, ...]
    max_new: int


@dataclass(frozen=True, slots=True)
class Question:
    """One item of W4; `answer` is the index of the right choice."""

    suffix: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Quiz:
    """W4: a few-shot prefix and questions whose choices are scored."""

    prefix: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """W5: at each level the same branches hang below every node of the level above."""

    root: str
    levels: tuple[tuple[str, ...], ...]
    max_new: int


@dataclass(frozen=True, slots=True)
class Chats:
    """W6: conversations over one system prompt; `end` closes a reply."""

    system: str
    users: tuple[tuple[str, ...], ...]
    end: str
    max_new: int


@dataclass(frozen=True, slots=True)
class Workloads:
    """All inputs of one repetition."""

    w1: FanOut
    w2: FanOut
    w2_schema: dict[str, Any]
    w4: Quiz
    w5: Tree
    w6: Chats


def turn(role: str, content: str) -> str:
    """A closed ChatML turn."""
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


OPEN_REPLY = "<|im_start|>assistant\n"


def read(path: Path) -> Workloads:
    """From a workload file: JSON with w1, w2, w4, w5, w6 as the texts and sizes."""
    data = json.loads(path.read_text(encoding="utf-8"))
    w1, w2, w4, w5, w6 = (data[key] for key in ("w1", "w2", "w4", "w5", "w6"))
    return Workloads(
        w1=FanOut(w1["prefix"], tuple(w1["suffixes"]), w1["max_new"]),
        w2=FanOut(w2["prefix"], tuple(w2["suffixes"]), w2["max_new"]),
        w2_schema=w2["schema"],
        w4=Quiz(w4["prefix"], tuple(Question(i["suffix"], tuple(i["choices"]), i["answer"]) for i in w4["items"])),
        w5=Tree(w5["root"], tuple(map(tuple, w5["branch"])), w5["max_new"]),
        w6=Chats(w6["system"], tuple(map(tuple, w6["user"])), w6["end"], w6["max_new"]),
    )


def build(repetition: int = 0) -> Workloads:
    """This project's own inputs."""
    suffixes = tuple(turn("user", ticket) + OPEN_REPLY for ticket in tickets(40))
    prefix = turn("system", preamble(repetition))
    return Workloads(
        w1=FanOut(prefix, suffixes, 64),
        w2=FanOut(prefix, suffixes, 192),
        w2_schema=Answer.model_json_schema(),
        w4=_quiz(repetition),
        w5=_tree(repetition),
        w6=_chats(repetition),
    )


_PAST = (
    "begin:began bite:bit blow:blew break:broke bring:brought build:built buy:bought catch:caught choose:chose come:came "
    "dig:dug draw:drew drink:drank drive:drove eat:ate fall:fell feed:fed feel:felt fight:fought find:found fly:flew "
    "forget:forgot freeze:froze give:gave go:went grow:grew hear:heard hide:hid hold:held keep:kept know:knew lead:led "
    "leave:left lend:lent lose:lost make:made meet:met pay:paid ride:rode ring:rang rise:rose run:ran say:said see:saw "
    "sell:sold send:sent shake:shook shine:shone sing:sang sink:sank sleep:slept speak:spoke spend:spent stand:stood "
    "steal:stole swim:swam take:took teach:taught tear:tore tell:told think:thought throw:threw wake:woke wear:wore "
    "win:won write:wrote"
)
_PLURAL = (
    "man:men woman:women child:children tooth:teeth foot:feet goose:geese mouse:mice ox:oxen leaf:leaves wolf:wolves "
    "knife:knives life:lives shelf:shelves thief:thieves half:halves cactus:cacti berry:berries city:cities box:boxes"
)
_YOUNG = (
    "dog:puppy cat:kitten cow:calf horse:foal sheep:lamb goat:kid pig:piglet hen:chick duck:duckling goose:gosling "
    "bear:cub deer:fawn kangaroo:joey swan:cygnet frog:tadpole owl:owlet hare:leveret eel:elver spider:spiderling"
)
_NUMBER = (
    "three:3 five:5 seven:7 nine:9 eleven:11 twelve:12 fourteen:14 sixteen:16 nineteen:19 twenty:20 thirty:30 forty:40 "
    "fifty:50 sixty:60 eighty:80 ninety:90"
)


def _quiz(repetition: int, asked: int = 100) -> Quiz:
    """100 questions of four kinds; the rest of the facts are the solved examples in the prefix."""
    facts = [
        *_facts("What is the past tense of {}?", _PAST),
        *_facts("What is the plural of {}?", _PLURAL),
        *_facts("What is the young of a {} called?", _YOUNG),
        *_facts("Which number is {}?", _NUMBER),
    ]
    mixed = sorted(range(len(facts)), key=lambda i: (i * 37) % len(facts))
    questions = [facts[i] for i in mixed]
    head = (
        f"Quiz {repetition % 10}. Every question has one right answer among four choices. Write that choice and nothing "
        "else.\n\n"
    )
    solved = [*questions[asked:], *(questions[i] for i in range(0, asked, 7))]
    shots = "".join(f"{q.suffix}{q.choices[q.answer]}\n\n" for q in solved)
    return Quiz(head + shots, tuple(questions[:asked]))


def _facts(form: str, pairs: str) -> list[Question]:
    known = [tuple(pair.split(":")) for pair in pairs.split()]
    return [_question(form.format(word), i, [answer for _, answer in known]) for i, (word, _) in enumerate(known)]


def _question(text: str, i: int, answers: list[str]) -> Question:
    choices = [answers[(i + step) % len(answers)] for step in (0, 5, 9, 14)]
    right = (i * 3) % 4
    choices[0], choices[right] = choices[right], choices[0]
    return Question(f"Question: {text}\nChoices: {'; '.join(choices)}\nAnswer:", tuple(f" {c}" for c in choices), right)


def _tree(repetition: int) -> Tree:
    root = turn(
        "user",
        f"Case {repetition % 10}. You plan trips for a mountain rescue depot, one short step after the other.\n"
        + preamble(0).split("\n", 1)[1].split("The tools,")[0]
        + "\nA hut warden has one sledge and a dog team that rests four hours after each trip. Three parcels wait for huts "
        "that lie two, three and five hours away. The storm comes in fourteen hours. Weigh the ways to bring the parcels "
        "out, and name what each of them costs.",
    )
    lenses = ("the fastest way", "the safest way", "the lightest load", "the kindest to the dogs")
    levels = tuple(tuple(f"\nStep {depth + 1}, {lens}:" for lens in lenses) for depth in range(3))
    return Tree(root + OPEN_REPLY, levels, 48)


def _chats(repetition: int) -> Chats:
    system = turn(
        "system",
        f"You are a guide at the outdoor shop Fern & Fell, counter {repetition % 10}. The shop has three rooms: boats and "
        "ropes in the cellar, tents and stoves on the ground floor, bicycles under the roof. It is open from nine to six, "
        "closed on Sundays. Members rent for half the price. Wet gear is dried here, nobody has to clean it. Answer "
        "briefly, and ask back when a wish is not clear.",
    )
    wishes = (
        "a canoe tour",
        "a winter hike",
        "a bike trip",
        "a night in a tent",
        "a climb",
        "a ski tour",
        "a river",
        "a hut",
    )
    questions = (
        "I would like to try {}. What do I need, and what can I rent?",
        "Two children come along. Does that change anything for {}?",
        "What do people forget most often before {}?",
        "Please sum up our list for {} in three points.",
    )
    users = tuple(tuple(turn("user", q.format(w)) + OPEN_REPLY for q in questions) for w in wishes)
    return Chats(system, users, "<|im_end|>\n", 64)
