package io.shmring.spark.sidecar;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.JsonNode;
import io.shmring.spark.request.Pickled;
import io.shmring.spark.request.SidecarCall;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;

/**
 * What a UDF that shmring.spark.arrow_udf() made says of itself. Its name is that of
 * the result's column, so that it stands in what was pickled.
 *
 * @param names of the arguments, as the user gave them; none if he gave no names
 */
record UdfCall(SidecarCall call, List<String> names) {
  private static final String MODULE = "shmring.spark.functions.udf";

  /** Empty if it is somebody else's function. */
  static Optional<UdfCall> of(PythonUDF function) {
    if (!Pickled.isOf(function, MODULE)) {
      return Optional.empty();
    }
    try (JsonParser words = SidecarCall.in(Pickled.text(function))) {
      SidecarCall call = SidecarCall.read(words);
      List<String> names = new ArrayList<>();
      JsonNode given = words.getCodec().readTree(words);
      given.forEach(name -> names.add(name.textValue()));
      return Optional.of(new UdfCall(call, names));
    } catch (IOException error) {
      return Optional.empty();
    }
  }

  /** What the sidecar's function sees this argument as. */
  String name(int argument) {
    return argument < names.size() ? names.get(argument) : "_" + argument;
  }
}
