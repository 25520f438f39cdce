"""The failpoints of applications, at which tests kill processes."""

WORKER = ("app.processed", "app.offsets", "app.applying", "app.sqlite", "app.applied")
FAILURES = ("app.death_counted", "app.output_first", "app.attempt_begun")
REPLAYS = ("app.replayed", "app.replay_committed")
NAMED = (*WORKER, *FAILURES, *REPLAYS)
