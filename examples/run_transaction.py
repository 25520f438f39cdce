"""`run_transaction`: a function is run again until its transaction is in; never half, never twice."""

import sys
import tempfile

import eoslog


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("ledger", partitions=2)
        attempts: list[int] = []

        def book(tx: eoslog.Transaction) -> None:
            attempts.append(1)
            tx.produce("ledger", "alice -10", partition=0)
            if len(attempts) == 1:
                raise eoslog.errors.TransactionAborted("the first attempt is lost on purpose")
            tx.produce("ledger", "bob +10", partition=1)

        log.run_transaction(book, transactional_id="booking")
        rows = sum(batch.num_rows for batch in log.scan("ledger"))
        print("attempts:", len(attempts), "records:", rows)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
