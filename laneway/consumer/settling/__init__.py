"""Making a cycle durable: the two truths (`replication`), the transaction, and who talks to Kafka for them.

The order of the steps is in `changelog_truth` and `local_truth`; who walks them is `consumer/settler.py`.
"""
