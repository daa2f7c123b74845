"""Pictures of graphs: terminal, Mermaid, DOT, SVG, HTML."""
