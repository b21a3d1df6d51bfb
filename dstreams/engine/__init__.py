"""Runs the batches of a stream: planner, runner, committer, scheduler, recovery."""
