package io.shmring.spark.sidecar;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;

/**
 * What a UDF that shmring.spark.arrow_udf() or pandas_udf() made says of itself. Its name is that of
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
    String text = Pickled.text(function);
    Matcher found = SidecarCall.in(text);
    return found.find()
        ? names(text.substring(found.end())).map(names -> new UdfCall(SidecarCall.of(found), names))
        : Optional.empty();
  }

  /**
   * @param text that begins with the names in JSON
   */
  private static Optional<List<String>> names(String text) {
    try {
      List<String> names = new ArrayList<>();
      for (JsonNode name : new ObjectMapper().readTree(text)) {
        names.add(name.textValue());
      }
      return Optional.of(names);
    } catch (JsonProcessingException error) {
      return Optional.empty();
    }
  }

  /** What the sidecar's function sees this argument as. */
  String name(int argument) {
    return argument < names.size() ? names.get(argument) : "_" + argument;
  }
}
