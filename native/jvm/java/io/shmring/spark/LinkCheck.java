package io.shmring.spark;

import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URISyntaxException;
import java.security.CodeSource;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;

/**
 * Checks whether this Spark has the classes, methods and fields that the nodes over rings use.
 * Vendors' versions of Spark, and newer ones, may lack some; a session then leaves all functions to
 * Spark, instead of failing in the middle of a query.
 */
public final class LinkCheck {
  private static final String SPARK = "org/apache/spark/";
  private static final String OURS = "io/shmring/spark/";
  private static final Set<String> PACKAGES =
      Set.of(OURS + "functions/", OURS + "request/", OURS + "columns/");

  private static final List<String> NODES =
      List.of(
          "ColumnsToRowsExec",
          "RowsToArrowExec",
          "SparkNodes$OfUdfs",
          "SparkNodes$OfWindows",
          "SparkNodes$OverOne",
          "SparkNodes$OverTwo");

  // CHANGE: edit this for a new version of Spark
  /** A method of Spark that the nodes override; listed here because no class file refers to it. */
  private static final Member REPLACED =
      new Member(
          SPARK + "api/python/BasePythonRunner",
          "org$apache$spark$api$python$BasePythonRunner$$daemonModule",
          "()Ljava/lang/String;");

  /**
   * A class of Spark, or one of its members.
   *
   * @param name name of the member; empty for the class itself
   * @param type descriptor of the member
   */
  public record Member(String owner, String name, String type) implements Comparable<Member> {
    @Override
    public int compareTo(Member other) {
      return toString().compareTo(other.toString());
    }

    @Override
    public String toString() {
      return owner.replace('/', '.') + (name.isEmpty() ? "" : "." + name + type);
    }
  }

  private LinkCheck() {}

  /** Returns the first member that this Spark lacks; empty if it lacks none. */
  public static Optional<String> missing() {
    try {
      ClassLoader loader = LinkCheck.class.getClassLoader();
      return missing(used(), loader).map(Member::toString).or(() -> unimplemented(loader));
    } catch (IOException | URISyntaxException error) {
      return Optional.of("readable jar of shmring: " + error);
    }
  }

  /**
   * Returns all members of Spark that the nodes' classes use; empty if the nodes' classes lie in no
   * jar.
   */
  public static Set<Member> used() throws IOException, URISyntaxException {
    Set<Member> used = new TreeSet<>();
    Optional<File> jar = jar();
    if (jar.isPresent()) {
      used.add(REPLACED);
      try (JarFile file = new JarFile(jar.get())) {
        for (JarEntry entry : file.stream().filter(LinkCheck::isOfNodes).toList()) {
          try (DataInputStream bytes = new DataInputStream(file.getInputStream(entry))) {
            addMembers(bytes, used);
          }
        }
      }
    }
    return used;
  }

  private static Optional<File> jar() throws URISyntaxException {
    CodeSource source = LinkCheck.class.getProtectionDomain().getCodeSource();
    return Optional.of(new File(source.getLocation().toURI())).filter(File::isFile);
  }

  private static boolean isOfNodes(JarEntry entry) {
    return entry.getName().endsWith(".class")
        && PACKAGES.stream().anyMatch(entry.getName()::startsWith);
  }

  /** Returns the first of the given members that the loader's classes lack. */
  public static Optional<Member> missing(Collection<Member> used, ClassLoader loader) {
    return used.stream().filter(member -> !isThere(member, loader)).findFirst();
  }

  private static boolean isThere(Member member, ClassLoader loader) {
    try {
      Class<?> owner = Class.forName(member.owner.replace('/', '.'), false, loader);
      if (!member.name.isEmpty()) {
        find(member, owner, loader);
      }
      return true;
    } catch (IllegalAccessException error) { // the member is static or not public, but exists
      return true;
    } catch (ReflectiveOperationException | LinkageError | TypeNotPresentException error) {
      return false;
    }
  }

  /**
   * Finds a member as the JVM links it. Reflection would load the types of all other members too.
   */
  private static void find(Member member, Class<?> owner, ClassLoader loader)
      throws ReflectiveOperationException {
    MethodHandles.Lookup lookup = MethodHandles.publicLookup();
    if (member.type.charAt(0) != '(') {
      String getter = "()" + member.type;
      Class<?> type = MethodType.fromMethodDescriptorString(getter, loader).returnType();
      lookup.findGetter(owner, member.name, type);
      return;
    }
    MethodType type = MethodType.fromMethodDescriptorString(member.type, loader);
    if (member.name.equals("<init>")) {
      lookup.findConstructor(owner, type);
    } else {
      lookup.findVirtual(owner, member.name, type);
    }
  }

  /**
   * Returns a node's method that is still abstract because a newer Spark has added it to a class or
   * interface that the node extends.
   */
  private static Optional<String> unimplemented(ClassLoader loader) {
    for (String name : NODES) {
      try {
        Class<?> node = Class.forName("io.shmring.spark.functions." + name, false, loader);
        for (Method each : node.getMethods()) {
          if (Modifier.isAbstract(each.getModifiers())) {
            return Optional.of("a " + name + " that implements " + each);
          }
        }
      } catch (ClassNotFoundException | LinkageError error) {
        return Optional.of(error.toString());
      }
    }
    return Optional.empty();
  }

  // --- the constant pool of a class file (chapter 4.4 of the JVM's specification) -----------------

  private static void addMembers(DataInputStream bytes, Set<Member> used) throws IOException {
    bytes.skipNBytes(8); // magic and version
    int count = bytes.readUnsignedShort();
    Object[] pool = new Object[count]; // a text, or the indices of other constants
    int[] tags = new int[count];
    for (int i = 1; i < count; i++) {
      tags[i] = bytes.readUnsignedByte();
      switch (tags[i]) {
        case 1 -> pool[i] = bytes.readUTF();
        case 7, 8, 16, 19, 20 -> pool[i] = new int[] {bytes.readUnsignedShort()};
        case 9, 10, 11, 12, 17, 18 ->
            pool[i] = new int[] {bytes.readUnsignedShort(), bytes.readUnsignedShort()};
        case 15 -> bytes.skipNBytes(3);
        case 5, 6 -> {
          bytes.skipNBytes(8);
          i++; // a long or double constant takes two numbers of the pool
        }
        default -> bytes.skipNBytes(4);
      }
    }
    for (int i = 1; i < count; i++) {
      if (tags[i] == 7) {
        add(new Member(text(pool, i, 0), "", ""), used);
      } else if (tags[i] >= 9 && tags[i] <= 11) {
        int[] ofMember = (int[]) pool[i];
        String owner = text(pool, ofMember[0], 0);
        add(new Member(owner, text(pool, ofMember[1], 0), text(pool, ofMember[1], 1)), used);
      }
    }
  }

  private static String text(Object[] pool, int at, int which) {
    return (String) pool[((int[]) pool[at])[which]];
  }

  private static void add(Member member, Set<Member> used) {
    if (member.owner.startsWith(SPARK)) {
      used.add(member);
    }
  }
}
