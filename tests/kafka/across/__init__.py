"""Programs on a log and a database, with Kafka and eoslog, under kills."""
