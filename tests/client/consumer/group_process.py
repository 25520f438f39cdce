"""A consumer in its own process that takes commands as lines and answers in JSON.

python group_process.py DIR '{"group.id": "g", ...}' topic...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def main() -> None:
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.errors import EoslogError
    from eoslog.model import TopicPartition

    directory, config, *topics = sys.argv[1:]
    consumer = Consumer({"log.dir": directory, **json.loads(config)})
    consumer.subscribe(topics)
    say({"ready": os.getpid()})
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            if command == "consume":
                records = consumer.consume(arguments[0], arguments[1])
                say([[r.partition, r.offset, r.value.decode()] for r in records])
            elif command == "commit":
                offsets = arguments[0] and [TopicPartition(t, p, o) for t, p, o in arguments[0]]
                consumer.commit(offsets)
                say("done")
            elif command == "assignment":
                consumer.poll(0) if arguments and arguments[0] else None
                say([p.partition for p in consumer.assignment()])
            elif command == "member":
                metadata = consumer.group_metadata()
                say([metadata.member_id, metadata.generation_id])
            elif command == "close":
                consumer.close()
                say("closed")
        except EoslogError as error:
            say({"error": type(error).__name__, "message": str(error)})


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


class GroupProcess:
    """The test's end of such a process."""

    def __init__(self, directory: Any, *topics: str, **config: Any) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(directory), json.dumps(settings), *topics],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self._read()["ready"]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process died"
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def consume(self, limit: int = 100, timeout: float = 0.2) -> list[list[Any]]:
        return self.ask("consume", limit, timeout)

    def commit(self, offsets: Any = None) -> Any:
        return self.ask("commit", offsets)

    def assignment(self) -> list[int]:
        return self.ask("assignment", False)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


if __name__ == "__main__":
    main()
