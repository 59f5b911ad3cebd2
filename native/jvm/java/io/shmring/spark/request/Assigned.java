package io.shmring.spark.request;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * Which of an answer's columns become which of the declared ones: what Spark's method of that name does.
 * spark/functions/expected.py says the same for mapInArrow.
 *
 * @param how columns find their places
 * @param takesMore whether columns behind the declared ones are left out
 * @param takesNumbered whether columns that are only numbered go by their places
 */
public record Assigned(How how, boolean takesMore, boolean takesNumbered) implements Serializable {
  /** Of one thing with several fields. */
  enum How {
    BY_PLACE,
    BY_NAME,
    BY_BOTH
  }

  static final Assigned BY_PLACE = new Assigned(How.BY_PLACE, false, false);

  private static final Assigned BY_BOTH = new Assigned(How.BY_BOTH, false, false);

  /**
   * @param method of Spark's that the user called
   * @param groupsByName whether columns of groups' answers go by their names
   */
  public static Assigned by(String method, boolean groupsByName) {
    boolean ofFrames = method.endsWith("Pandas");
    return switch (method) {
      case "mapInArrow" -> BY_PLACE;
      case "mapInPandas" -> new Assigned(How.BY_NAME, true, true);
      default -> groupsByName ? new Assigned(How.BY_NAME, false, ofFrames) : BY_PLACE;
    };
  }

  /** Of the fields of a struct: names are looked at, and none is moved. */
  Assigned inside() {
    return how == How.BY_PLACE ? BY_PLACE : BY_BOTH;
  }

  /** Why these columns cannot be assigned; empty: they can. */
  Optional<String> objection(List<String> got, List<String> wanted) {
    if (got.equals(wanted)) {
      return Optional.empty();
    }
    if (how == How.BY_PLACE || isNumbered(got, wanted)) {
      return misplaced(taken(got, wanted), wanted);
    }
    Optional<String> why = unlike(taken(got, wanted), wanted);
    return how == How.BY_BOTH ? why.or(() -> misplaced(got, wanted)) : why;
  }

  /** Where each declared column stands in an answer to which there was no objection. */
  int[] places(List<String> got, List<String> wanted) {
    return how == How.BY_NAME && !got.equals(wanted) && !isNumbered(got, wanted)
        ? wanted.stream().mapToInt(got::indexOf).toArray()
        : IntStream.range(0, wanted.size()).toArray();
  }

  private List<String> taken(List<String> got, List<String> wanted) {
    return takesMore && got.size() > wanted.size() ? got.subList(0, wanted.size()) : got;
  }

  /** As pandas does with a frame's columns that have no names; declared ones are names. */
  private boolean isNumbered(List<String> got, List<String> wanted) {
    return takesNumbered
        && got.stream().noneMatch(wanted::contains)
        && IntStream.range(0, got.size()).allMatch(i -> got.get(i).equals(Integer.toString(i)));
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
