"""Mistakes that a type checker finds. `test_typing.py` wants an error in each line with a `# ` comment and in no other."""

from __future__ import annotations

from sglang_dsl import RunOptions, State, gen, program, select, set_default_backend, use


class Desk:
    @program
    def ask(self, s: State, question: str) -> int:
        number = gen("number", type=int)
        s += number
        word: str = s[number]  # an int
        return len(word)


@program
def ask(s: State, question: str) -> str:
    s += gen("x", max_token=3)  # max_tokens
    s += gen("x", max_tokens="3")  # an int
    s += gen("x", type=int, temprature=0)  # temperature
    s += gen("x", schema=dict, n="3")  # an int
    s += select("y", ["a"], metod="mean")  # method
    s += select("y", ["a"], method="average")  # none of the four
    answer: int = gen("x", type=int)  # a call, not its value
    return str(answer)


RunOptions(bakend="mock")  # backend
RunOptions(backend=3)  # a name or an Executor
RunOptions(seed="x")  # an int
use(bakend="mock")  # backend
use(temprature=0)  # temperature
use(temperature="hot")  # a float
set_default_backend(3)  # a name or an Executor
ask.run()  # a question
ask.run(3)  # a str
ask.run("q", sed=3)  # no such parameter
ask.run("q", options=3)  # RunOptions
ask.run("q", options={"seed": 1})  # RunOptions
ask.start(3)  # a str
ask.stream("q", options=3)  # RunOptions
ask.run_batch(["q"], options=3)  # RunOptions
ask.run_batch(["q"], concurency=3)  # concurrency
Desk().ask.run(3)  # a str
Desk().ask.run("q", options="mock")  # RunOptions
