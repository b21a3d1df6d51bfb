"""Small projects to begin with: what ``dstreams new`` writes."""
