package io.shmring.spark.functions;

import java.util.List;
import org.apache.spark.sql.execution.SparkPlan;

/** A plan node that Spark compares, and copies, by the values that its constructor takes. */
abstract class ProductPlan extends SparkPlan {
  /** Returns the values that the constructor takes, in their order. */
  abstract List<Object> elements();

  @Override
  public int productArity() {
    return elements().size();
  }

  @Override
  public Object productElement(int n) {
    return elements().get(n);
  }

  @Override
  public boolean canEqual(Object other) {
    return getClass().isInstance(other);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof ProductPlan same
        && same.canEqual(this)
        && elements().equals(same.elements());
  }

  @Override
  public int hashCode() {
    return elements().hashCode();
  }
}
