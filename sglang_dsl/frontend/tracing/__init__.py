"""How a body is followed without a model: tags, shapes, paths, their exploration, and how paths become one graph.

    tags      how a value that does not exist yet reads as text, and how it is found again
    shapes    what is known of such a value before it exists
    path      one run of the body: a Recorder that keeps nodes, decisions and breaks
    beyond    what a body does beyond a Break, whatever the answer there is
    guard     what a traced body may not do: write files, open sockets, ask the user
    explore   which paths are walked: all of them, or every arm once
    items     nodes loosened from their context, and linked again
    regions   paths that part and meet, as Switch nodes

`frontend/tracing/values.py` has the abstract values, `frontend/tracing/tracer.py` puts the parts together.
"""
