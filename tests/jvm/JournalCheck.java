import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.journal.Journal;
import io.shmring.journal.SegmentReader;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.zip.CRC32;

/**
 * Reads journals that it is told of, a line each: `read FROM UNTIL DIRECTORY`, `reach FROM UNTIL
 * MESSAGES SLOTS DIRECTORY`, `end DIRECTORY`; `plan FROM UNTIL DIRECTORY`, and `planned DIRECTORY`
 * to read that. Answers lines that end with an empty one.
 */
public final class JournalCheck {
  private JournalCheck() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    List<Journal.Piece> planned = List.of();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      Journal journal = new Journal(Path.of(words[words.length - 1]));
      try {
        switch (words[0]) {
          case "read" -> read(journal, pieces(journal, words));
          case "plan" -> planned = pieces(journal, words);
          case "planned" -> read(journal, planned);
          case "reach" ->
              System.out.println(
                  journal.reach(
                      Long.parseLong(words[1]),
                      Long.parseLong(words[2]),
                      Long.parseLong(words[3]),
                      Long.parseLong(words[4])));
          case "end" -> System.out.println(journal.end());
          default -> throw new IllegalArgumentException(line);
        }
      } catch (RingException error) {
        System.out.println(error.status() + " " + error.getMessage());
      }
      System.out.println();
      System.out.flush();
    }
  }

  private static List<Journal.Piece> pieces(Journal journal, String[] words) throws Exception {
    return journal.pieces(Long.parseLong(words[1]), Long.parseLong(words[2]));
  }

  private static void read(Journal journal, List<Journal.Piece> pieces) throws Exception {
    for (Journal.Piece piece : pieces) {
      try (SegmentReader reader = new SegmentReader(journal, piece)) {
        while (reader.hasNext()) {
          Message message = reader.next();
          CRC32 sum = new CRC32();
          sum.update(message.bytes());
          System.out.println(
              String.join(
                  " ",
                  Long.toString(message.id()),
                  Long.toString(message.time()),
                  Integer.toString(message.kind()),
                  Long.toString(message.length()),
                  Integer.toString(message.slots()),
                  Long.toString(sum.getValue())));
        }
      }
    }
  }
}
