import java.io.*;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's tools behind a pipe: one JVM, many runs, since a JVM of its own costs each tool more than a second. An order is a
 * line: the main class, the input, and the arguments, all but the class in Base64, with tabs between them. The answer is a
 * line with the exit code, standard output and standard error. What a tool would end the JVM with ends the run instead.
 */
public class Tools {
    static final PrintStream ANSWERS = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    static final Base64.Encoder ENCODER = Base64.getEncoder();
    static final Base64.Decoder DECODER = Base64.getDecoder();

    static ByteArrayOutputStream out, err;
    static Integer ended;

    /** Thrown where a tool would end the JVM. Some tools catch it and go on talking: what they say after it does not count. */
    static class Ended extends Error {
        Ended(int code) {
            super("exit " + code, null, false, false);
            if (ended == null) {
                ended = code;
                System.setOut(new PrintStream(OutputStream.nullOutputStream()));
                System.setErr(System.out);
            }
        }
    }

    @SuppressWarnings("removal")
    static class NoExit extends SecurityManager {
        @Override public void checkExit(int code) { throw new Ended(code); }
        @Override public void checkPermission(java.security.Permission permission) { }
        @Override public void checkPermission(java.security.Permission permission, Object context) { }
    }

    @SuppressWarnings("removal")
    public static void main(String[] args) throws Exception {
        Exit.setExitProcedure((code, message) -> { throw new Ended(code); });
        Exit.setHaltProcedure((code, message) -> { throw new Ended(code); });
        System.setSecurityManager(new NoExit());
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            String[] words = line.split("\t", -1);
            out = new ByteArrayOutputStream();
            err = new ByteArrayOutputStream();
            ended = null;
            System.setIn(new ByteArrayInputStream(DECODER.decode(words[1])));
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int code = run(words[0], Arrays.stream(words).skip(2).map(Tools::text).toArray(String[]::new));
            System.out.flush();
            System.err.flush();
            ANSWERS.println(code + "\t" + ENCODER.encodeToString(out.toByteArray()) + "\t" + ENCODER.encodeToString(err.toByteArray()));
            ANSWERS.flush();
        }
    }

    static int run(String tool, String[] arguments) {
        try {
            scala.Console$.MODULE$.withOut(System.out, () -> {
                scala.Console$.MODULE$.withErr(System.err, () -> {
                    invoke(tool, arguments);
                    return null;
                });
                return null;
            });
            return ended == null ? 0 : ended;
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while (cause.getCause() != null && (cause instanceof InvocationTargetException || cause instanceof Wrapped)) cause = cause.getCause();
            if (ended != null) return ended;
            System.err.print("Exception in thread \"main\" ");
            cause.printStackTrace();
            return 1;
        }
    }

    static class Wrapped extends RuntimeException {
        Wrapped(Throwable cause) {
            super(cause);
        }
    }

    static void invoke(String tool, String[] arguments) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (ReflectiveOperationException error) {
            throw new Wrapped(error);
        }
    }

    static String text(String encoded) {
        return new String(DECODER.decode(encoded), StandardCharsets.UTF_8);
    }
}
