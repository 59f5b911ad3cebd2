package io.shmring.spark;

import io.shmring.spark.LinkCheck.Member;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.xbean.asm9.ClassReader;
import org.apache.xbean.asm9.ClassVisitor;
import org.apache.xbean.asm9.ClassWriter;
import org.apache.xbean.asm9.FieldVisitor;
import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;

/** Lets Spark's classes lack each member that is used in turn, and prints members that nobody missed. */
public final class LinksCheck {
  private static final ClassLoader SPARKS = LinksCheck.class.getClassLoader();
  private static final Map<String, byte[]> FILES = new ConcurrentHashMap<>();

  private LinksCheck() {}

  public static void main(String[] arguments) throws Exception {
    Set<Member> used = LinkCheck.used();
    System.out.println(used.size());
    System.out.println(LinkCheck.missing());
    for (Member member : used) {
      if (!LinkCheck.missing(List.of(member), new Lacking(member)).equals(Optional.of(member))) {
        System.out.println("not missed: " + member);
      }
    }
  }

  /** Spark as it is, but for a class, or for all members of one name. */
  private static final class Lacking extends ClassLoader {
    private final Member member;

    Lacking(Member member) {
      super(SPARKS);
      this.member = member;
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
      if (member.name().isEmpty() && member.owner().equals(path)) {
        throw new ClassNotFoundException(name);
      }
      byte[] file = FILES.computeIfAbsent(path, LinksCheck::read);
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
          return name.equals(member.name()) && type.equals(member.type())
              ? null
              : super.visitMethod(access, name, type, signature, exceptions);
        }

        @Override
        public FieldVisitor visitField(
            int access, String name, String type, String signature, Object value) {
          return name.equals(member.name()) && type.equals(member.type())
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
