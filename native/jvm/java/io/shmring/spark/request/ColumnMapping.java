package io.shmring.spark.request;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * Which of an answer's columns become which of the declared ones: what Spark's method does.
 * spark/functions/expected.py says the same for mapInArrow.
 */
public enum ColumnMapping {
  BY_PLACE,
  BY_NAME,
  /** Names are looked at, and none is moved. */
  BY_BOTH;

  /** Of the fields of a struct. */
  ColumnMapping inside() {
    return this == BY_PLACE ? BY_PLACE : BY_BOTH;
  }

  /** Why these columns cannot be assigned; empty: they can. */
  Optional<String> objection(List<String> got, List<String> wanted) {
    if (got.equals(wanted)) {
      return Optional.empty();
    }
    return switch (this) {
      case BY_PLACE -> misplaced(got, wanted);
      case BY_NAME -> unlike(got, wanted);
      case BY_BOTH -> unlike(got, wanted).or(() -> misplaced(got, wanted));
    };
  }

  /** Where each declared column stands in an answer to which there was no objection. */
  int[] places(List<String> got, List<String> wanted) {
    return this == BY_NAME && !got.equals(wanted)
        ? wanted.stream().mapToInt(got::indexOf).toArray()
        : IntStream.range(0, wanted.size()).toArray();
  }

  private static Optional<String> unlike(List<String> got, List<String> wanted) {
    List<String> why = new ArrayList<>();
    wanted.stream().filter(name -> !got.contains(name)).forEach(n -> why.add(n + " is missing"));
    got.stream().filter(name -> !wanted.contains(name)).forEach(n -> why.add(n + " is not declared"));
    HashSet<String> seen = new HashSet<>();
    got.stream().filter(name -> !seen.add(name)).forEach(n -> why.add(n + " comes twice"));
    return why.isEmpty() ? Optional.empty() : Optional.of(String.join(", ", why));
  }

  private static Optional<String> misplaced(List<String> got, List<String> wanted) {
    for (String name : wanted) {
      if (!got.contains(name) && got.size() < wanted.size()) {
        return Optional.of(name + " is missing");
      }
    }
    if (got.size() != wanted.size()) {
      return Optional.of(String.format("it has %d columns, not %d", got.size(), wanted.size()));
    }
    for (int i = 0; i < wanted.size(); i++) {
      // Another name means nothing to Spark, as long as it is not that of another column.
      if (!got.get(i).equals(wanted.get(i)) && got.contains(wanted.get(i))) {
        return Optional.of(String.format("%s stands where %s is expected", got.get(i), wanted.get(i)));
      }
    }
    return Optional.empty();
  }
}
