"""Algorithms, and what they learnt: policies, critics and their files."""
