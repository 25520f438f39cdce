"""Run jobs with retries: each ends once, in the results or in the dead letters.

A job that fails waits for its next attempt, in the transaction that takes it out of the queue. The
third failure sends it to the dead letters, which `eoslog dead list` shows. Kill it at any point.
"""

import sys
import tempfile

import eoslog


def queue(path: str) -> eoslog.App:
    """Return the application, whose task does the work of a job; replace the task."""
    app = eoslog.App(path, "jobs")

    @app.task("jobs", value="string", to="jobs-done", retries=(0.1, 0.2), on_error="dead_letter")
    def work(job: eoslog.Record, _ctx: eoslog.Context) -> str:
        if "bad" in job.value:
            raise ValueError(f"{job.value}: cannot be done")
        return str(job.value).upper()

    return app


def main(path: str) -> None:
    """Queue four jobs, one of which always fails, and run them."""
    with queue(path) as app:
        app.create_topics(partitions=2)
        with app.log.producer() as producer:
            for number, job in enumerate(("resize", "mail", "bad request", "print")):
                producer.produce("jobs", job, key=str(number))
    report = app.run(until="caught_up")
    print("done", report.records - 1, "failed", report.dead_letters, "retried", report.retried)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
