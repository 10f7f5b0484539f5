"""The consumer: Kafka, workers, settling, ownership. The only part that imports confluent_kafka."""
