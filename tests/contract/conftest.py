"""Asserts in the shared suites explain themselves as those in test modules do."""

import pytest

pytest.register_assert_rewrite("contract.engine_harness", "contract.engine_suite")
