"""Settings, clock, durations, events and checks that every other package uses."""
