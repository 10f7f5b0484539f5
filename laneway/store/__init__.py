"""The ledger: one RocksDB per source partition, and its twin in memory. The only part that imports rocksdict.

Imports of Laneway are `laneway.lanes` and `laneway.errors`, nothing else. Read in this order:
`port` (what the consumer may ask of a ledger), `codec` (every byte that is stored),
`changes` (what of it makes the changelog), `rocks` (RocksDB behind a dozen typed calls), `ledger` (the
port over it), `reader` (the same, read only, beside a running worker), `memory` (the port over
dictionaries), `files` and `state_dir` (where stores live, whom they belong to, who may read them).
"""
