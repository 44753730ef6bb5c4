"""OpenAI's HTTP protocol as values: requests read, requests sorted, responses and frames written.

`requests` are the bodies, `reading` turns bytes into them or into an exact refusal, `paths` decides
between resume and relay, `prompts` makes ids and checks lengths, `responses` and `frames` write.
Nothing here does input or output.
"""
