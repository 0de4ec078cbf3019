"""What the sides of the cases in `cases.yaml` run."""
