"""Predict with Ray Data, Spark, Dask or datasets: two workers, the rows of `finetune predict`.

pip install "ray[data]" pyspark "dask[dataframe]"      # one of them; Spark needs Java
python examples/engines.py ray         # uses the run OUT; trains it first if it does not exist
"""

import os
import sys
import tempfile
from pathlib import Path

import pandas

from finetune import BatchPredictor, ClassifyConfig, fit, load_task
from finetune.cli.main import main


def predict_with_ray(file: Path, run: Path) -> pandas.DataFrame:
    import ray

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)  # one reads
    rows = ray.data.read_parquet(str(file), override_num_blocks=4)
    found = rows.map_batches(
        BatchPredictor,
        fn_constructor_args=[str(run)],
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=32,
        batch_format="pyarrow",
    ).to_pandas()
    ray.shutdown()
    return found


def predict_with_spark(file: Path, run: Path) -> pandas.DataFrame:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.getOrCreate()
    predict = BatchPredictor(run)
    rows = session.read.parquet(str(file)).repartition(4)
    schema = "number long, text string, label string, score double, scores map<string, double>"
    found = rows.mapInPandas(lambda batches: map(predict, batches), schema).toPandas()
    session.stop()
    return found


def predict_with_dask(file: Path, run: Path) -> pandas.DataFrame:
    from dask import dataframe

    rows = dataframe.from_pandas(pandas.read_parquet(file), npartitions=4)
    predict = BatchPredictor(run)
    meta = predict(rows.head(1)).iloc[:0]  # the columns of the result
    found = rows.map_partitions(predict, meta=meta)
    return found.compute(scheduler="processes", num_workers=2)


def predict_with_datasets(file: Path, run: Path) -> pandas.DataFrame:
    from datasets import Dataset

    rows = Dataset.from_parquet(str(file))
    predict = BatchPredictor(run)
    # The types of filled columns: without features, a column that is empty in the first batch of a
    # process (withheld labels) has no type, and the first value ends the command.
    features = Dataset.from_dict(predict(rows[:32])).features
    mapped = rows.map(predict, batched=True, batch_size=32, num_proc=2, features=features)
    return mapped.to_pandas()


if __name__ == "__main__":
    run = Path(os.environ.get("OUT", "runs/example-engines")).absolute()
    if not (run / "best").exists():
        config = ClassifyConfig(
            model=os.environ.get("MODEL", "minilm"),
            data="examples/data/sentiment",
            steps=int(os.environ.get("STEPS", "0")) or None,
            precision="fp32",  # rounding of bf16 depends on the other texts of a batch
            out=str(run),
        )
        task, data = load_task(config, "classify")
        fit(task, data, config)

    engine = sys.argv[1]
    with tempfile.TemporaryDirectory() as temporary:
        file, expected = Path(temporary) / "texts.parquet", Path(temporary) / "expected.jsonl"
        texts = pandas.read_json("examples/data/sentiment/train.jsonl", lines=True)["text"]
        pandas.DataFrame({"number": range(len(texts)), "text": texts}).to_parquet(file)
        found = globals()[f"predict_with_{engine}"](file, run).sort_values("number")
        main(["predict", str(run), "--file", str(file), "--keep-columns", "--out", str(expected)])
        rows = pandas.read_json(expected, lines=True)

    # Batches of other texts round in another way: the last digit of a probability may differ.
    for name in ("number", "text", "label"):
        assert list(found[name]) == list(rows[name]), name
    assert abs(found["score"].to_numpy() - rows["score"].to_numpy()).max() < 2e-6
    print(f"{len(found)} rows by {engine}, equal to finetune predict")
