"""Damaged media of every kind, taken through the steps for images, sound, video, text and archives.

    seeds (real encoders) ─▶ damage, or a bomb ─▶ the real pipeline, in processes that may die ─▶ what became of it

Each case is a function of a seed and a number, so that one that went wrong can be played again:

    python -m tests.support.fuzz --cases=20000 --seed=1
    python -m tests.support.fuzz --seed=1 --only=1234 --keep=folder

Nothing may crash a process, hang, or take more memory than the bound, and each case must have an outcome.
"""
