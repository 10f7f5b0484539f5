"""The boundary to the Kafka client: configuration and clients, the cluster, its errors, its log lines."""
