"""Executes a graph while it grows: from a node to requests, and from their results to the node's value.

run        what the frontend sees of it; which functions check and begin each kind of node; the record
machine    which nodes wait, begin and end, and how ends and failures travel
entries    a node in a run: where it stands, who waits for it; leases of forks, the longest path behind a call
prompts    how a branch's text is rendered as the ids that a model sees
texts      kinds that need no model: texts, roles, inputs, returns
branches   forks and joins, which cancel the branches that lose; switch, loop and map
calls      gens and selects: which requests they send, and what becomes of the results
requests   what both calls share; a request on its way, equal work, healing
answers    from a text to a checked value, from scores to the choice that wins
tools      tools, and every other call of a function of the user
user_code  the threads, the event loop and the alarms that functions of the user run on
events     events, usage, the budget, and what is done outside the run's lock
target     what the interpreter needs of a model
"""
