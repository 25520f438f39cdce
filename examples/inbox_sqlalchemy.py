"""Apply records to mapped objects of SQLAlchemy exactly once, in batches.

`log.sink` begins and commits the sessions. Each commit stores the offsets in the transaction of the
objects, so a killed reader continues where its last committed batch ended.
"""

import sys
import tempfile

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import eoslog


class Base(DeclarativeBase):
    """The mapped classes of this program."""


class Account(Base):
    """The balance of a customer."""

    __tablename__ = "account"
    customer: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(default=0)


def book(session: Session, customer: str, amount: int) -> None:
    """Add an amount to an account, which is created if it is new."""
    account = session.get(Account, customer)
    if account is None:
        account = Account(customer=customer, amount=0)
        session.add(account)
    account.amount += amount


def apply_payments(log: eoslog.Log, database: "eoslog.sql.Database", fails: bool) -> int:
    """Apply all payments that the database does not have, and return their number."""
    applied = 0
    with log.consumer("payments", group_id="accounts", auto_offset_reset="earliest") as consumer:
        for batch in log.sink(consumer, database, records=2, timeout=0.5):
            if not batch:
                break
            for record in batch:
                book(batch.connection, record.key.decode(), int(record.value))
            if fails:
                raise RuntimeError("as in a crash: the batch is rolled back")
            applied += len(batch)
    return applied


def main(path: str) -> None:
    """Write three payments, fail once, and apply all payments."""
    engine = create_engine(f"sqlite:///{path}-accounts.sqlite")
    Base.metadata.create_all(engine)
    database = eoslog.sql.Database(sessionmaker(engine))
    with eoslog.open(path) as log:
        log.create_topic("payments", exist_ok=True)
        with log.producer() as producer:
            for customer, amount in [("ada", 30), ("bob", 5), ("ada", 7)]:
                producer.produce("payments", str(amount), key=customer)
        try:
            apply_payments(log, database, fails=True)
        except RuntimeError:
            applied = apply_payments(log, database, fails=False)
        paid = sum(int(record.value) for record in log.read("payments"))
    database.close()
    with Session(engine) as session:
        balance = session.scalar(select(func.sum(Account.amount)))
    engine.dispose()
    print("applied", applied, "payments; the balance is right:", balance == paid)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
