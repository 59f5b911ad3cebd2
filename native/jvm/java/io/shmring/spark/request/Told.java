package io.shmring.spark.request;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.SparkTypes;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What a request says of Spark's method beside its rows, as metadata of its schema: it is for functions
 * that have Spark's annotations, and sidecars/told.py reads it.
 */
public final class Told {
  private static final String KEY = "shmring.spark";

  /** Settings that say how Spark's Python workers convert data. */
  private static final List<String> SETTINGS =
      List.of("session.timeZone", ".useLargeVarTypes", ".pandas.");

  private Told() {}

  /** For UDFs, whose calls have their types. */
  public static Map<String, String> ofUdfs(SQLConf conf) {
    return metadata(json("udf", conf));
  }

  /**
   * For a method of frames.
   *
   * @param method as the user called it
   * @param declared what he has declared as the answer
   */
  public static Map<String, String> of(
      String method, SQLConf conf, StructType declared, SparkTypes types) {
    return metadata(json(method, conf, declared, types));
  }

  /**
   * For a method of groups.
   *
   * @param keys for each side
   * @param columns that are sent, for each side
   */
  public static Map<String, String> of(
      String method,
      SQLConf conf,
      StructType declared,
      SparkTypes types,
      List<Seq<Attribute>> keys,
      List<List<ExprId>> columns) {
    ObjectNode json = json(method, conf, declared, types);
    ArrayNode sides = json.putArray("keys");
    for (int i = 0; i < keys.size(); i++) {
      ArrayNode places = sides.addArray();
      for (Attribute key : CollectionConverters.asJava(keys.get(i))) {
        places.add(columns.get(i).indexOf(key.exprId()));
      }
    }
    return metadata(json);
  }

  private static ObjectNode json(
      String method, SQLConf conf, StructType declared, SparkTypes types) {
    byte[] schema = EncodedBatch.schemaBytes(types.schema(declared));
    return json(method, conf).put("declared", Base64.getEncoder().encodeToString(schema));
  }

  private static ObjectNode json(String method, SQLConf conf) {
    ObjectNode json = JsonNodeFactory.instance.objectNode().put("method", method);
    ObjectNode settings = json.putObject("settings");
    // In order: requests of one schema may be joined, and the text is part of it.
    new TreeMap<>(CollectionConverters.asJava(ArrowPythonRunner.getPythonRunnerConfMap(conf)))
        .forEach(
            (name, value) -> {
              if (SETTINGS.stream().anyMatch(name::contains)) {
                settings.put(name, value);
              }
            });
    return json;
  }

  private static Map<String, String> metadata(ObjectNode json) {
    return Map.of(KEY, json.toString());
  }
}
