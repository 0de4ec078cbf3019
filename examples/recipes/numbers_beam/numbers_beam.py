"""Splits that Beam makes: the same code runs on this machine and on a cluster (`--beam_options`)."""

import any2ds


class NumbersBeam(any2ds.Recipe):
    """Numbers and their squares."""

    VERSION = "1.0.0"
    RELEASE_NOTES = {"1.0.0": "First release."}

    def info(self):
        return any2ds.Info(
            features={"number": any2ds.Scalar("int64"), "square": any2ds.Scalar("int64")},
            tags=["synthetic"],
            supervised_keys=("number", "square"),
        )

    def splits(self, dl, pipeline):
        import apache_beam as beam

        numbers = pipeline | "numbers" >> beam.Create(range(100))  # a step that both splits share
        return {
            "even": numbers | "even" >> beam.Filter(lambda n: n % 2 == 0) | "even samples" >> beam.Map(example),
            "odd": numbers | "odd" >> beam.Filter(lambda n: n % 2 == 1) | "odd samples" >> beam.Map(example),
        }


def example(number):
    return number, {"number": number, "square": number * number}
