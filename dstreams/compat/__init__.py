"""The APIs of Spark under their own names, and how programs written for them run."""
