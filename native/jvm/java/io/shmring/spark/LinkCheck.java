package io.shmring.spark;

import java.io.File;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URISyntaxException;
import java.security.CodeSource;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.xbean.asm9.ClassReader;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Checks whether this Spark has the classes, methods and fields that shmring uses. Vendors' versions
 * of Spark, and newer ones, may lack some; a session then leaves its functions, or the results that
 * the driver collects, to Spark, instead of failing in the middle of a query.
 */
public final class LinkCheck {
  private static final Logger LOG = LoggerFactory.getLogger(LinkCheck.class);
  private static final String SPARK = "org/apache/spark/";
  private static final String CLASS_FILE = ".class";
  private static final String OURS = "io/shmring/spark/";

  // Tags in a class file of constants that name a class, a field, or a method of an interface. The
  // tag between FIELD and INTERFACE_METHOD, 10, is that of a method of a class.
  private static final int CLASS = 7;
  private static final int FIELD = 9;
  private static final int INTERFACE_METHOD = 11;

  /**
   * Packages of the plan nodes that run functions over rings. Some of these nodes also write the
   * batches of collected results.
   */
  private static final List<String> FUNCTIONS = List.of("columns/", "functions/", "request/");

  /** Packages that the collection of results needs in addition to FUNCTIONS. */
  private static final List<String> RESULTS = List.of("driver/");

  /**
   * The first member that Spark lacks, for each list of packages; empty if Spark lacks none. The
   * map saves a search of 60 ms in each further session.
   */
  private static final Map<List<String>, Optional<String>> FOUND = new ConcurrentHashMap<>();

  // CHANGE: edit this for a new version of Spark
  /**
   * A method of Spark that PythonRun overrides; listed here because no class file of shmring refers
   * to the method of Spark's class.
   */
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

  /**
   * Holds the members of Spark that classes of shmring use, and the parents of these classes.
   *
   * @param parents for each class, the class and the interfaces that it extends
   */
  public record Uses(Set<Member> members, Map<String, List<String>> parents) {
    /** Returns whether a class extends a class or an interface of Spark. */
    boolean extendsSpark(String name) {
      return parents.getOrDefault(name, List.of()).stream()
          .anyMatch(each -> each.startsWith("org.apache.spark.") || extendsSpark(each));
    }
  }

  private LinkCheck() {}

  /**
   * Returns the first member of Spark that functions need and this Spark lacks; empty if this Spark
   * has all of them.
   */
  public static Optional<String> missing() {
    return FOUND.computeIfAbsent(FUNCTIONS, LinkCheck::look);
  }

  /** Returns whether this Spark has all members that the collection of results needs. */
  public static boolean collectsResults() {
    Optional<String> missing =
        missing().or(() -> FOUND.computeIfAbsent(RESULTS, LinkCheck::look));
    missing.ifPresent(
        member -> LOG.warn("results take Spark's own way, not files: this Spark lacks {}", member));
    return missing.isEmpty();
  }

  private static Optional<String> look(List<String> packages) {
    try {
      ClassLoader loader = LinkCheck.class.getClassLoader();
      Uses uses = uses(files(packages));
      Optional<String> missing = missing(uses.members, loader).map(Member::toString);
      return missing.isPresent() ? missing : unimplemented(uses, loader);
    } catch (IOException | URISyntaxException | LinkageError error) { // Spark may lack ClassReader
      return Optional.of("readable jar of shmring: " + error);
    }
  }

  /** Returns the members of Spark that the classes in these files use, and the classes' parents. */
  public static Uses uses(Map<String, byte[]> files) {
    Uses uses = new Uses(new TreeSet<>(), new TreeMap<>());
    for (byte[] bytes : files.values()) {
      ClassReader file = new ClassReader(bytes);
      uses.members.add(REPLACED);
      addMembers(file, uses.members);
      List<String> parents = new ArrayList<>(List.of(file.getInterfaces()));
      parents.add(0, file.getSuperName());
      parents.replaceAll(each -> each.replace('/', '.'));
      uses.parents.put(file.getClassName().replace('/', '.'), parents);
    }
    return uses;
  }

  /**
   * Returns the packages' class files, by class; empty if they lie in no jar.
   *
   * @param packages packages below io/shmring/spark/, each with a slash at its end; an empty text
   *     for all of them
   */
  public static Map<String, byte[]> files(List<String> packages)
      throws IOException, URISyntaxException {
    CodeSource source = LinkCheck.class.getProtectionDomain().getCodeSource();
    File jar = new File(source.getLocation().toURI());
    Map<String, byte[]> files = new TreeMap<>();
    if (jar.isFile()) {
      try (JarFile opened = new JarFile(jar)) {
        for (JarEntry entry : Collections.list(opened.entries())) {
          String name = entry.getName();
          if (name.endsWith(CLASS_FILE)
              && packages.stream().anyMatch(each -> name.startsWith(OURS + each))) {
            String ofClass = name.substring(0, name.length() - CLASS_FILE.length());
            files.put(ofClass.replace('/', '.'), opened.getInputStream(entry).readAllBytes());
          }
        }
      }
    }
    return files;
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
   * Finds a member as the JVM does when it links a class: loads only the types in the member's
   * descriptor. Reflection would load the types of all other members, too.
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
   * Returns a method that is still abstract because a newer Spark has added it to a class or
   * interface that a class of shmring extends. Loads only the classes of shmring that extend
   * Spark's, because loading all of them would double the time of the check.
   */
  public static Optional<String> unimplemented(Uses uses, ClassLoader loader) {
    try {
      for (String name : uses.parents.keySet().stream().filter(uses::extendsSpark).toList()) {
        Class<?> extending = Class.forName(name, false, loader);
        if (!Modifier.isAbstract(extending.getModifiers())) {
          for (Method each : extending.getMethods()) {
            if (Modifier.isAbstract(each.getModifiers())) {
              return Optional.of("a " + extending.getSimpleName() + " that implements " + each);
            }
          }
        }
      }
    } catch (ClassNotFoundException | LinkageError error) {
      return Optional.of(error.toString());
    }
    return Optional.empty();
  }

  /** Adds the members in a class file's pool of constants (JVM specification, chapter 4.4). */
  private static void addMembers(ClassReader file, Set<Member> used) {
    char[] room = new char[file.getMaxStringLength()];
    for (int i = 1; i < file.getItemCount(); i++) {
      int at = file.getItem(i); // offset behind the constant's tag; 0 if no constant has this number
      int tag = at == 0 ? 0 : file.readByte(at - 1);
      if (tag == CLASS) {
        add(new Member(file.readUTF8(at, room), "", ""), used);
      } else if (tag >= FIELD && tag <= INTERFACE_METHOD) {
        int member = file.getItem(file.readUnsignedShort(at + 2));
        String name = file.readUTF8(member, room);
        add(new Member(file.readClass(at, room), name, file.readUTF8(member + 2, room)), used);
      }
    }
  }

  private static void add(Member member, Set<Member> used) {
    if (member.owner.startsWith(SPARK)) {
      used.add(member);
    }
  }
}
