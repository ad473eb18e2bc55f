"""Benchmarks of parsing: ratios against named references, run interleaved on logs made here."""
