"""Engines that FlexPipe can run plans on: the port, and one package an engine."""
