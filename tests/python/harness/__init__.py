"""Runs test bodies on several ranks, one process each, and checks what they leave behind."""
