"""Events, status and metrics of running streams and queries, and the views that show them."""
