"""Physical operators of structured queries: small frozen values that make RDDs of RDDs.

See :mod:`dstreams.structured.operators.physical_operator` for how records travel between them, and
:mod:`dstreams.structured.operators.execution_context` for how a batch is run by hand.
"""
