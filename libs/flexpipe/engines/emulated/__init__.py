"""An engine that speaks SGLang's HTTP, spends time as a performance table says and computes nothing.

Every token is a function of all tokens before it (`oracle`), so a lost, doubled or reordered one
shows at once. Run it as ``python -m flexpipe.engines.emulated``; `adapter` writes that command line.
"""
