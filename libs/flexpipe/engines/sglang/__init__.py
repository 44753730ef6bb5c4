"""SGLang as an engine: launched as processes, never imported by a control service.

``adapter`` turns a layout into launch specs (plain Python, used by the worker). ``plugin``,
``checkpoints`` and ``cpu_shim`` run inside SGLang's own environment only.
"""
