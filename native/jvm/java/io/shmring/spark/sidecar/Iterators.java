package io.shmring.spark.sidecar;

import java.util.Iterator;
import java.util.function.Function;

final class Iterators {
  private Iterators() {}

  /** What comes of each element, when it is asked for. */
  static <T, R> Iterator<R> map(Iterator<T> elements, Function<? super T, ? extends R> change) {
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return elements.hasNext();
      }

      @Override
      public R next() {
        return change.apply(elements.next());
      }
    };
  }
}
