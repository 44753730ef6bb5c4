"""The text half of the resume path: ids in, ids out, words for the client.

`tokenizer` turns messages into ids, `detokenizer` turns ids back into text as they come, `stops`
finds stop strings in that text. None of it knows which engine made the ids, so none of it can be
disturbed by a hand-over.
"""
