package io.shmring.spark.request;

import io.shmring.spark.columns.ColumnRows;
import io.shmring.spark.columns.RootColumns;
import java.util.Iterator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** UDFs over columns, which wait in the vectors that their arguments are sent from. */
final class UdfColumns extends UdfAnswers {
  private final ColumnRows rows;

  UdfColumns(UdfSignature signature) {
    super(signature.results());
    StructType joined = signature.rows();
    for (StructField result : signature.results().fields()) {
      joined = joined.add(result);
    }
    this.rows = new ColumnRows(joined);
  }

  @Override
  public ColumnarBatch columns(VectorSchemaRoot results) {
    return RootColumns.of(sentOf(results.getRowCount()), results);
  }

  @Override
  public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
    return rows.of(piece);
  }
}
