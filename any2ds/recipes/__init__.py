"""Recipes: datasets as code, from a description and a generator of samples to a dataset in its folder."""
