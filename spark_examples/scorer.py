"""A model server: predicts from a line of an order whether it will be returned.

Loading is what costs: the model is fitted once a worker, not once a task.
"""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from sklearn.ensemble import HistGradientBoostingClassifier

FEATURES = ["l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_ship_day"]
FITTED_ON = 50_000  # rows


class Scorer:
    """Adds the column ``score``, the probability of a return in millionths."""

    def __init__(self) -> None:
        sample = ds.dataset(os.environ["LINEITEM"]).head(
            FITTED_ON, columns=[*FEATURES[:-1], "l_shipdate", "l_returnflag"]
        )
        returned = np.asarray(sample["l_returnflag"].to_pylist()) == "R"
        day = sample["l_shipdate"].cast(pa.int32()).cast(pa.float64())
        columns = [sample[name].cast(pa.float64()) for name in FEATURES[:-1]]
        self.model = HistGradientBoostingClassifier(max_iter=20, random_state=1)
        self.model.fit(np.column_stack([*columns, day]), returned)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        features = np.column_stack([batch.column(name).cast(pa.float64()) for name in FEATURES])
        score = self.model.predict_proba(features)[:, 1]
        return batch.append_column("score", pa.array((score * 1e6).astype(np.int64)))
