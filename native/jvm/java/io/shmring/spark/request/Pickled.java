package io.shmring.spark.request;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import scala.collection.immutable.Seq;

/** What was pickled to be called in Python's workers, as far as the JVM can read that. */
public final class Pickled {
  /** The class of what is called stands at the beginning, behind the pickle's own head. */
  private static final int CLASS_WITHIN = 64;

  private Pickled() {}

  /** Whether a class of this module is called; a function that only took its name has another. */
  public static boolean isOf(PythonUDF function, String module) {
    return text(function, CLASS_WITHIN).contains(module);
  }

  /** All of it; texts of ASCII stand there as they are. */
  public static String text(PythonUDF function) {
    return text(function, Integer.MAX_VALUE);
  }

  private static String text(PythonUDF function, int most) {
    Seq<Object> command = function.func().command();
    byte[] begin = new byte[Math.min(most, command.length())];
    for (int i = 0; i < begin.length; i++) {
      begin[i] = (Byte) command.apply(i);
    }
    return new String(begin, StandardCharsets.ISO_8859_1);
  }
}
