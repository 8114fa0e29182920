"""Metrics, log lines and health checks for the operator."""
