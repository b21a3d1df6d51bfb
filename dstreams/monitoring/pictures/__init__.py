"""Pictures of graphs, batches and states: pure functions from plain values to HTML, SVG and text.

They know nothing of streams, run nothing, and need no file of style: colours are those of the page
around them, light or dark, and all that they are given is escaped.
"""
