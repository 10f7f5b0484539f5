"""The rules. Pure: no Kafka, no RocksDB, no clock, no threads, no logging.

Time enters as an argument, decisions leave as values. Read in this order: `record` (what
travels), `envelope` (who it is), `effect`, `lane`, `case` (what the ledger keeps), `admission`
(the tables), `board` (which lane, which rule), `verdict` and `failures` (what a handler said),
`forward` (what goes to another topic), `frontier` (what may be committed).
"""
