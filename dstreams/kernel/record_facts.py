"""Facts that the records of a stream's batches have beside what every record has."""

AFTER = "after_ms"
"""Begin record: time of the batch before, where batches between the two are left out."""

BETWEEN_BATCHES = "between_batches"
"""Begin record: whether only state is committed, at a time between two batches."""

UNREAD = "unread"
"""Commit record: uids of the inputs that the batch could not read and did without."""

VERSIONS_MADE_AT = "versions_made_at"
"""Commit record: the batch that made each version in the state store, as JSON."""
