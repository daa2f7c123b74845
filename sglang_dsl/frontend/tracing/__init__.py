"""How a body is followed without a model: it runs on values that do not exist yet, once per answer it may get.

tracer        `trace`: arguments, runs, what comes beyond a Break, the graph
trace         what all runs share, what abstract values ask, what a body may not do meanwhile
values        abstract values: texts, numbers and data that do not exist yet
shapes        what is known of such a value, and the tag that stands for it in texts
path          one run of the body: a Recorder that keeps nodes, decisions and Breaks
control_flow  `s.switch`, `s.loop` and `s.map` in such a run
items         decisions, and nodes loosened from their context so that runs can be compared
explore       which runs are made: all ways, or every answer once
regions       ways that part and meet, as Switch nodes
export        a trace that runs without its Python source, and how that is checked
rehearsal     the values and the executor of that check
"""
