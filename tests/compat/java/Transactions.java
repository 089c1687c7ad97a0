import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Transactional producers, and readers of what they wrote, behind a pipe: one JVM, many of each, known by their names. An
 * order is a line of tab-separated words; the answer is any number of lines and then "ok", or "error" with the exception's
 * class and message. It uses only what the clients of 3.9 and 4.3 share.
 */
public class Transactions {
    static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    static final Map<String, KafkaProducer<String, String>> PRODUCERS = new HashMap<>();
    static final Map<String, KafkaConsumer<String, String>> MEMBERS = new HashMap<>();
    static final Duration PATIENCE = Duration.ofSeconds(30);
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            try {
                obey(line.split("\t", -1));
                OUT.println("ok");
            } catch (Throwable thrown) {
                Throwable cause = thrown instanceof ExecutionException || thrown.getCause() instanceof org.apache.kafka.common.KafkaException ? thrown.getCause() : thrown;
                OUT.println("error\t" + cause.getClass().getSimpleName() + "\t" + String.valueOf(cause.getMessage()).replace('\n', ' '));
            }
            OUT.flush();
        }
        System.exit(0);
    }

    static void obey(String[] words) throws Exception {
        var producer = PRODUCERS.get(words[1]);
        switch (words[0]) {
            case "open" -> PRODUCERS.put(words[1], new KafkaProducer<>(settings(words[2]), new StringSerializer(), new StringSerializer()));
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[2], Integer.valueOf(words[3]), words[4], words[5]));
            case "flush" -> producer.flush();
            case "offset" -> producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(words[3], Integer.parseInt(words[4])), new OffsetAndMetadata(Long.parseLong(words[5]))),
                MEMBERS.containsKey(words[2]) ? MEMBERS.get(words[2]).groupMetadata() : new ConsumerGroupMetadata(words[2]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> PRODUCERS.remove(words[1]).close(Duration.ZERO);
            case "join" -> join(words[1], words[2]);
            case "leave" -> MEMBERS.remove(words[1]).close();
            case "read" -> read(words[1], Integer.parseInt(words[2]), words[3]);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    /** A member is known by the name of its group. */
    static void join(String group, String topic) {
        var member = consumer("group.id=" + group + ",isolation.level=read_committed,auto.offset.reset=earliest");
        member.subscribe(List.of(topic));
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (member.assignment().isEmpty() && System.nanoTime() < deadline) member.poll(Duration.ofMillis(100));
        MEMBERS.put(group, member);
    }

    /** Everything that is there for this isolation level now. */
    static void read(String topic, int partitions, String isolation) {
        try (var reader = consumer("isolation.level=" + isolation)) {
            var all = IntStream.range(0, partitions).mapToObj(each -> new TopicPartition(topic, each)).toList();
            reader.assign(all);
            reader.seekToBeginning(all);
            var ends = reader.endOffsets(all);
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (all.stream().anyMatch(each -> reader.position(each) < ends.get(each))) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("the end was not reached");
                for (var each : reader.poll(Duration.ofMillis(100))) OUT.println(each.partition() + "\t" + each.offset() + "\t" + each.key() + "\t" + each.value());
            }
        }
    }

    static KafkaConsumer<String, String> consumer(String more) {
        return new KafkaConsumer<>(settings("enable.auto.commit=false,fetch.max.wait.ms=20," + more), new StringDeserializer(), new StringDeserializer());
    }

    static Properties settings(String text) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        for (String pair : text.split(",")) made.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        return made;
    }
}
