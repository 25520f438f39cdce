"""The directory of a Kafka broker: read, checked, recovered and repaired by Kafka's rules."""
