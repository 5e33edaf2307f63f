"""From text to batches.

``fetch`` downloads known corpora and ``stories`` makes some; ``text`` reads documents; ``prepare`` turns them into
token shards; ``shards`` is the files' layout; ``dataset`` opens a split, and ``loader`` gives batches of it.
"""
