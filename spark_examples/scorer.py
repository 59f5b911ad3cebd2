"""Model that the sidecar of score_lineitem.py serves.

The model predicts from a line of an order whether the line will be returned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FEATURES = ["l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_ship_day"]
FITTED_ON = 50_000  # rows


def fit(lineitem: Path, model: Path) -> None:
    """Fit a model to some lines, and keep it in a file."""
    import joblib
    import pyarrow.dataset as ds
    from sklearn.ensemble import HistGradientBoostingClassifier

    sample = ds.dataset(lineitem).head(
        FITTED_ON, columns=[*FEATURES[:-1], "l_shipdate", "l_returnflag"]
    )
    returned = np.asarray(sample["l_returnflag"].to_pylist()) == "R"
    day = sample["l_shipdate"].cast(pa.int32()).cast(pa.float64())
    columns = [sample[name].cast(pa.float64()) for name in FEATURES[:-1]]
    fitted = HistGradientBoostingClassifier(max_iter=20, random_state=1)
    joblib.dump(fitted.fit(np.column_stack([*columns, day]), returned), model)


class Scorer:
    """Adds the column ``score``, the probability of a return in millionths."""

    def __init__(self) -> None:
        begun = time.perf_counter()
        import joblib  # with scikit-learn, it is most of what loading takes

        self._model: Any = joblib.load(os.environ["MODEL"])
        with open(os.environ["MODEL_LOADS"], "a") as loads:
            loads.write(f"{time.perf_counter() - begun}\n")

    def predict(self, columns: Sequence[npt.ArrayLike]) -> npt.NDArray[np.int64]:
        """The scores of lines whose features are these."""
        scores: npt.NDArray[np.float64] = self._model.predict_proba(np.column_stack(columns))[:, 1]
        return (scores * 1e6).astype(np.int64)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("score", pa.array(self.predict([batch[n] for n in FEATURES])))
