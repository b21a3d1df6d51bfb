"""Physical operators of structured queries: small frozen values that make RDDs of RDDs.

See :mod:`dstreams.structured.operators.physical_operator` for the rows between them, and
``docs/pages/how-to/experiment-with-operators.md`` for running them by hand.
"""
