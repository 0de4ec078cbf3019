"""Pictures scored in batches by a model, and the dull ones filtered.  python examples/score_batches.py

The model is a real one in ONNX, and so small that it is made here: it tells colourful pictures from grey ones. Yours is
a file that you have. Needs: pip install 'any2ds[image]' onnx onnxruntime
"""

import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
from demo_server import demo_urls
from onnx import TensorProto, helper
from PIL import Image, UnidentifiedImageError

import any2ds

MODEL = Path("colourful.onnx")
SIDE = 32  # pixels
LEAST = 0.5
OUTPUT = Path("score_output")


@any2ds.transform(columns={"colourful": float}, batch_size=32)
class Colourful:
    """Made once in each process, and called with up to 32 samples, by one thread at a time."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # there is a process for each core
        self.model = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    def __call__(self, samples: list[any2ds.Sample]) -> list[any2ds.Sample]:
        pictures = [pixels(sample.data) for sample in samples]
        readable = [picture for picture in pictures if picture is not None]
        scores = iter(self.model.run(None, {"pixels": np.stack(readable)})[0] if readable else [])
        return [
            self.judged(sample, None if picture is None else float(next(scores)))
            for sample, picture in zip(samples, pictures, strict=True)
        ]

    def judged(self, sample: any2ds.Sample, score: float | None) -> any2ds.Sample:
        if score is None:
            return sample.filtered("no picture")
        scored = sample.with_fields(colourful=score)
        return scored if score >= LEAST else scored.filtered("dull")


def pixels(data: bytes) -> np.ndarray | None:
    """Height, width and colour, from 0 to 1."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB").resize((SIDE, SIDE)), np.float32) / 255
    except UnidentifiedImageError:
        return None


def make_model() -> None:
    """sigmoid(20 * (mean over all pixels of the brightest colour less the darkest) - 4)"""
    nodes = [
        helper.make_node("ReduceMax", ["pixels"], ["most"], axes=[3], keepdims=0),
        helper.make_node("ReduceMin", ["pixels"], ["least"], axes=[3], keepdims=0),
        helper.make_node("Sub", ["most", "least"], ["chroma"]),
        helper.make_node("ReduceMean", ["chroma"], ["mean"], axes=[1, 2], keepdims=0),
        helper.make_node("Mul", ["mean", "weight"], ["weighted"]),
        helper.make_node("Add", ["weighted", "bias"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    weights = [
        helper.make_tensor("weight", TensorProto.FLOAT, [], [20.0]),
        helper.make_tensor("bias", TensorProto.FLOAT, [], [-4.0]),
    ]
    graph = helper.make_graph(
        nodes,
        "colourful",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, MODEL)


if __name__ == "__main__":
    make_model()
    with demo_urls() as url_list:
        any2ds.download(
            url_list,
            output_folder=OUTPUT,
            output_format="webdataset",
            caption_col="caption",
            transform=f"{__file__}:Colourful",
            timeout=2,
            incremental_mode="overwrite",
        )
    columns = ["key", "status", "colourful", "caption"]
    table = pa.concat_tables([pq.read_table(file, columns=columns) for file in sorted(OUTPUT.glob("*.parquet"))])
    scored = sorted(
        (row for row in table.to_pylist() if row["colourful"] is not None), key=lambda row: row["colourful"]
    )
    for row in [*scored[-3:][::-1], *scored[:3]]:
        print(f"{row['colourful']:.3f}  {row['status']:<8}  {row['key']}  {row['caption']}")
    print(f"{sum(row['status'] == 'success' for row in scored)} of {len(scored)} pictures are in {OUTPUT}")
