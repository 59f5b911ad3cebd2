package io.shmring.spark.sidecar;

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
 * What a UDF that shmring.spark.arrow_udf() made says of itself. Its name is that of
 * the result's column, so that it stands in what was pickled.
 *
 * @param names of the arguments, as the user gave them; none if he gave no names
 */
record UdfCall(SidecarCall call, List<String> names) {
  private static final String MODULE = "shmring.spark.functions";

  /** Of what was pickled: what is called stands there, and what only wraps such a UDF has it behind. */
  private static final int CLASS_WITHIN = 64;

  /** Empty if it is somebody else's function. */
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

  /** Texts of ASCII stand there as they are. */
  private static String pickled(PythonUDF function, int most) {
    Seq<Object> command = function.func().command();
    byte[] bytes = new byte[Math.min(most, command.length())];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (Byte) command.apply(i);
    }
    return new String(bytes, StandardCharsets.ISO_8859_1);
  }

  /** What the sidecar's function sees this argument as. */
  String name(int argument) {
    return argument < names.size() ? names.get(argument) : "_" + argument;
  }
}
