"""Traces -> files in the user's folder of caches, which later processes read instead of tracing."""
