"""Tests of oodbench.board."""
