package io.shmring.spark.functions;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.JsonNode;
import io.shmring.spark.request.Call.SidecarCall;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import scala.collection.immutable.Seq;

/**
 * Describes a UDF that shmring.spark.arrow_udf() made. The description is in the pickled function.
 * It cannot be in the function's name, as for shmring.spark.through(), because the name of a UDF is
 * the name of the result's column.
 *
 * @param names names of the arguments, if the user gave some; else empty
 */
record UdfCall(SidecarCall call, List<String> names) {
  private static final String MODULE = "shmring.spark.functions";

  /**
   * Number of first bytes of a pickled function that contain the name of its class. Later bytes may
   * name classes of other objects, for example of a UDF of shmring that the function wraps.
   */
  private static final int CLASS_WITHIN = 64;

  /** Returns the description of a function; empty if shmring.spark.arrow_udf() has not made it. */
  static Optional<UdfCall> of(PythonUDF function) {
    if (!pickled(function, CLASS_WITHIN).contains(MODULE)) {
      return Optional.empty();
    }
    try (JsonParser words = SidecarCall.in(pickled(function, Integer.MAX_VALUE))) {
      SidecarCall call = SidecarCall.read(words);
      List<String> names = new ArrayList<>();
      JsonNode given = words.getCodec().readTree(words);
      given.forEach(name -> names.add(name.textValue()));
      return Optional.of(new UdfCall(call, names));
    } catch (IOException error) {
      return Optional.empty();
    }
  }

  /** Returns the first bytes of the pickled function as text; ASCII texts in it can be read. */
  private static String pickled(PythonUDF function, int most) {
    Seq<Object> command = function.func().command();
    byte[] bytes = new byte[Math.min(most, command.length())];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (Byte) command.apply(i);
    }
    return new String(bytes, StandardCharsets.ISO_8859_1);
  }

  /** Returns the name of the column that the sidecar's function sees for an argument. */
  String name(int argument) {
    return argument < names.size() ? names.get(argument) : "_" + argument;
  }
}
