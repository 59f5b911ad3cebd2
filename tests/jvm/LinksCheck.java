package io.shmring.spark;

import static java.util.stream.Collectors.toSet;

import io.shmring.spark.LinkCheck.Member;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.xbean.asm9.ClassReader;
import org.apache.xbean.asm9.ClassVisitor;
import org.apache.xbean.asm9.ClassWriter;
import org.apache.xbean.asm9.FieldVisitor;
import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;

/**
 * Lets Spark lack all classes that are used, or all members; prints those that nobody missed. Prints
 * the classes, too, of which LinkCheck does not know whether they extend a class of Spark.
 */
public final class LinksCheck {
  private static final ClassLoader SPARKS = LinksCheck.class.getClassLoader();

  private LinksCheck() {}

  public static void main(String[] arguments) throws Exception {
    LinkCheck.Uses uses = LinkCheck.uses(LinkCheck.files(List.of(""))); // all packages
    Set<Member> used = uses.members();
    System.out.println(used.size());
    System.out.println(LinkCheck.missing(used, SPARKS));
    System.out.println(LinkCheck.unimplemented(uses, SPARKS));
    Set<Member> classes = used.stream().filter(each -> each.name().isEmpty()).collect(toSet());
    Set<Member> members = used.stream().filter(each -> !each.name().isEmpty()).collect(toSet());
    // Without their members, the classes are there.
    System.out.println(LinkCheck.missing(classes, new Lacking(members)));
    for (Set<Member> lacking : List.of(classes, members)) {
      ClassLoader sparks = new Lacking(lacking);
      for (Member member : lacking) {
        if (LinkCheck.missing(List.of(member), sparks).isEmpty()) {
          System.out.println("not missed: " + member);
        }
      }
    }
    for (String name : uses.parents().keySet()) {
      if (uses.extendsSpark(name) != extendsSpark(Class.forName(name, false, SPARKS))) {
        System.out.println("mistaken for another: " + name);
      }
    }
  }

  private static boolean extendsSpark(Class<?> each) {
    return each != null
        && (each.getName().startsWith("org.apache.spark.")
            || extendsSpark(each.getSuperclass())
            || Stream.of(each.getInterfaces()).anyMatch(LinksCheck::extendsSpark));
  }

  /** Spark as it is, but for some classes, or for all members with some names and types. */
  private static final class Lacking extends ClassLoader {
    private final Set<String> names;

    Lacking(Set<Member> members) {
      super(SPARKS);
      this.names =
          members.stream()
              .map(each -> each.name().isEmpty() ? each.owner() : each.name() + each.type())
              .collect(toSet());
    }

    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
      synchronized (getClassLoadingLock(name)) {
        Class<?> loaded = findLoadedClass(name);
        return loaded == null && name.startsWith("org.apache.spark.") ? made(name)
            : loaded == null ? super.loadClass(name, resolve) : loaded;
      }
    }

    private Class<?> made(String name) throws ClassNotFoundException {
      String path = name.replace('.', '/');
      if (names.contains(path)) {
        throw new ClassNotFoundException(name);
      }
      byte[] file = read(path);
      if (file.length == 0) {
        throw new ClassNotFoundException(name);
      }
      ClassWriter lacking = new ClassWriter(0);
      new ClassReader(file).accept(without(lacking), 0);
      byte[] bytes = lacking.toByteArray();
      return defineClass(name, bytes, 0, bytes.length);
    }

    private ClassVisitor without(ClassWriter lacking) {
      return new ClassVisitor(Opcodes.ASM9, lacking) {
        @Override
        public MethodVisitor visitMethod(
            int access, String name, String type, String signature, String[] exceptions) {
          return names.contains(name + type)
              ? null
              : super.visitMethod(access, name, type, signature, exceptions);
        }

        @Override
        public FieldVisitor visitField(
            int access, String name, String type, String signature, Object value) {
          return names.contains(name + type)
              ? null
              : super.visitField(access, name, type, signature, value);
        }
      };
    }
  }

  private static byte[] read(String path) {
    try (InputStream stream = SPARKS.getResourceAsStream(path + ".class")) {
      return stream == null ? new byte[0] : stream.readAllBytes();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
