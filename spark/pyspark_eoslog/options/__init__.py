"""Options of the data source: their values, and settings of Kafka's connector."""
