"""Transactions: who writes under a transactional id, and how what was written ends. A pure state machine.

`broker/transactions.py` runs it: it keeps the records, and sends the markers that the machine orders.
"""
