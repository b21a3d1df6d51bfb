"""Records in Arrow blocks: many of them at once, a column for each field.

An Arrow block is a ``pyarrow.RecordBatch``. A function that takes whole blocks is called once for
some thousands of records, where one that takes records is called for each.
"""
