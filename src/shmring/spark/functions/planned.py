"""With what options Spark's Python worker converts the data of the task that runs in it.

They are those that the session had when the query was planned, which is later than the function was
pickled, and may be earlier than the action whose local properties the task has. Spark tells them to
its worker only: what converts the data is up the stack from whoever converts more of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmring.spark.functions.stack import callers_locals

__all__ = ["Planned", "planned"]


@dataclass(frozen=True, slots=True)
class Planned:
    """None is what this version of Spark does not tell, or what runs outside of its workers.

    Parameters
    ----------
    zone : of timestamps in pandas frames
    large : whether texts and binaries have 64-bit offsets
    groups_by_name : whether the columns of what a grouped function returns go by their names
    """

    zone: str | None = None
    large: bool | None = None
    groups_by_name: bool = True


def planned() -> Planned:
    """Those of the task that calls this."""
    zone = None
    for variables in callers_locals():
        conf: Any = variables.get("runner_conf")
        if hasattr(conf, "timezone"):
            by_name = getattr(conf, "assign_cols_by_name", True)
            return Planned(conf.timezone, conf.use_large_var_types, bool(by_name))
        # Up to Spark 4.1 that is all there is; 4.2 has both up the stack of some functions.
        zone = zone or getattr(variables.get("serializer"), "_timezone", None)
    return Planned(zone)
