import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Transactions through Kafka's own clients, which speak the second generation: partitions are added by being used.
 *
 *   Transactions rate  BOOTSTRAP TOPIC WARM SECONDS PARTITIONS PRODUCERS RECORDS   how many are committed
 *   Transactions delay BOOTSTRAP TOPIC WARM SECONDS                                how much later read_committed has a record
 *   Transactions loop  BOOTSTRAP TOPIC WARM SECONDS PARTITIONS INPUT RECORDS       consume, transform, produce, offsets inside
 *
 * Prints one JSON object. `transactions.c` does the same with the first generation; the two are to be kept alike.
 */
public class Transactions {
    static final int VALUE_BYTES = 100, SAMPLES_MAX = 100_000, PAUSE_MS = 10;
    static final AtomicLong DONE = new AtomicLong();
    static volatile boolean finished;
    static String bootstrap, topic;
    static double warmSeconds, seconds;
    static int partitions;

    @SuppressWarnings("serial")
    static class CannotMeasure extends RuntimeException {
        CannotMeasure(String why) { super(why); }
    }

    static Properties settings() {
        var made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        return made;
    }

    /** With a broker that does not offer it, the clients would fall back to the first without a word. */
    static void mustSpeakGeneration2() throws Exception {
        try (var admin = Admin.create(settings())) {
            var found = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
            if (found == null || found.maxVersionLevel() < 2) throw new CannotMeasure("transaction.version is " + found + ", not 2");
        }
    }

    /** Before a commit all is flushed, so what is sent in one transaction makes one batch for each partition. */
    static KafkaProducer<byte[], byte[]> transactional(int number) {
        var settings = settings();
        settings.put("transactional.id", "bench-" + ProcessHandle.current().pid() + "-" + number);
        var made = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        made.initTransactions();
        return made;
    }

    static KafkaConsumer<byte[], byte[]> consumer(String isolation, int most) {
        var settings = settings();
        settings.put("group.id", "bench-" + ProcessHandle.current().pid());
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", isolation);
        settings.put("max.poll.records", most);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void put(Producer<byte[], byte[]> producer, int partition, byte[] value) {
        producer.send(new ProducerRecord<>(topic, partition, null, value));
    }

    /** Kafka's sender (4.3) may look whether records are left before they are sent, and for the end of their transaction after that:
     *  then the end goes first, and the transaction is empty (INVALID_TXN_STATE). With a flush there is nothing left to overtake. */
    static void commit(Producer<byte[], byte[]> producer) {
        producer.flush();
        producer.commitTransaction();
        DONE.incrementAndGet();
    }

    static void sleep(double duration) throws InterruptedException {
        Thread.sleep((long) (duration * 1000));
    }

    static double cpuSeconds() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    static List<TopicPartition> all(String name) {
        var made = new ArrayList<TopicPartition>();
        for (int p = 0; p < partitions; p++) made.add(new TopicPartition(name, p));
        return made;
    }

    static long totalEnd(Consumer<byte[], byte[]> consumer) {
        return consumer.endOffsets(all(topic)).values().stream().mapToLong(Long::longValue).sum();
    }

    /** A commit may be answered before its markers are written. */
    static void mustHaveGrown(Consumer<byte[], byte[]> consumer, long before, long expected) throws InterruptedException {
        long deadline = System.nanoTime() + 10_000_000_000L, grown;
        while ((grown = totalEnd(consumer) - before) != expected) {
            if (System.nanoTime() > deadline) throw new CannotMeasure("records and markers are " + expected + ", but the log grew by " + grown);
            Thread.sleep(50);
        }
    }

    static long growth(int records) {
        return DONE.get() * (records + Math.min(records, partitions));
    }

    interface Work {
        void run() throws Exception;
    }

    static Thread start(Work work) {
        var thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable thrown) {
                fail(thrown);
            }
        });
        thread.start();
        return thread;
    }

    static void fail(Throwable thrown) {
        System.err.println("Transactions: " + thrown);
        Runtime.getRuntime().halt(1);
    }

    /** Lets the others work: first to warm up, then on the clock. What is measured, as JSON. */
    static String watch() throws InterruptedException {
        sleep(warmSeconds);
        long first = DONE.get(), start = System.nanoTime();
        double cpu = cpuSeconds();
        sleep(seconds);
        long counted = DONE.get() - first;
        double took = (System.nanoTime() - start) / 1e9, used = cpuSeconds() - cpu;
        finished = true;
        if (counted == 0) throw new CannotMeasure("nothing was committed in " + took + " s");
        return String.format(Locale.ROOT, "\"seconds\": %.4f, \"per_second\": %.2f, \"client_us_each\": %.1f", took, counted / took, 1e6 * used / counted);
    }

    static void printRate(String measured) {
        System.out.println("{\"count\": " + DONE.get() + ", " + measured + "}");
    }

    // --- how many

    static void commitOn(Producer<byte[], byte[]> producer, int records) {
        byte[] value = new byte[VALUE_BYTES];
        Arrays.fill(value, (byte) 'a');
        for (int turn = 0; !finished; turn++) {
            producer.beginTransaction();
            for (int i = 0; i < records; i++) put(producer, (turn + i) % partitions, value);
            commit(producer);
        }
    }

    static void rate(int producers, int records) throws Exception {
        var made = new ArrayList<KafkaProducer<byte[], byte[]>>();
        for (int n = 0; n < producers; n++) made.add(transactional(n));
        var looker = consumer("read_uncommitted", 1);
        long before = totalEnd(looker);
        var threads = new ArrayList<Thread>();
        for (var producer : made) threads.add(start(() -> commitOn(producer, records)));
        String measured = watch();
        for (var thread : threads) thread.join();
        mustHaveGrown(looker, before, growth(records));
        printRate(measured);
    }

    // --- how much later

    static void readTail(String isolation, AtomicLongArray delivered) {
        var reader = consumer(isolation, 1);
        reader.assign(all(topic));
        reader.seekToEnd(all(topic));
        while (!finished) {
            for (var found : reader.poll(Duration.ofMillis(20))) delivered.set((int) ByteBuffer.wrap(found.value()).getLong(), System.nanoTime());
        }
    }

    static boolean bothHave(AtomicLongArray one, AtomicLongArray other, int number, double patience) throws InterruptedException {
        long deadline = System.nanoTime() + (long) (patience * 1e9);
        while (one.get(number) == 0 || other.get(number) == 0) {
            if (System.nanoTime() > deadline) return false;
            Thread.sleep(0, 200_000);
        }
        return true;
    }

    static double quantile(List<Double> values, double part) {
        Collections.sort(values);
        return values.get((int) ((values.size() - 1) * part));
    }

    static void delay() throws Exception {
        var ofCommitted = new AtomicLongArray(SAMPLES_MAX);
        var ofAll = new AtomicLongArray(SAMPLES_MAX);
        List<Double> added = new ArrayList<>(), sinceCommit = new ArrayList<>(), sinceSend = new ArrayList<>();
        var producer = transactional(0);
        start(() -> readTail("read_committed", ofCommitted));
        start(() -> readTail("read_uncommitted", ofAll));
        boolean heard = false;
        long begun = System.nanoTime(), warm = begun + (long) (warmSeconds * 1e9), end = warm + (long) (seconds * 1e9);
        for (int number = 0; number < SAMPLES_MAX && System.nanoTime() < end; number++) {
            byte[] value = ByteBuffer.allocate(VALUE_BYTES).putLong(number).array();
            long sent = System.nanoTime();
            producer.beginTransaction();
            put(producer, 0, value);
            producer.flush();
            long asked = System.nanoTime();
            commit(producer);
            boolean came = bothHave(ofCommitted, ofAll, number, heard ? 10 : 0.2);
            heard |= came;
            if (!came && (heard || System.nanoTime() - begun > 20_000_000_000L)) throw new CannotMeasure("record " + number + " did not reach both readers");
            if (came && sent > warm) {
                added.add((ofCommitted.get(number) - ofAll.get(number)) / 1e3);
                sinceCommit.add((ofCommitted.get(number) - asked) / 1e3);
                sinceSend.add((ofAll.get(number) - sent) / 1e3);
            }
            Thread.sleep(PAUSE_MS);
        }
        if (added.isEmpty()) throw new CannotMeasure("nothing was measured");
        System.out.printf(Locale.ROOT, "{\"count\": %d, \"added_p50_us\": %.1f, \"added_p99_us\": %.1f, \"committed_p50_us\": %.1f, \"uncommitted_p50_us\": %.1f}%n",
            added.size(), quantile(added, 0.5), quantile(added, 0.99), quantile(sinceCommit, 0.5), quantile(sinceSend, 0.5));
    }

    // --- consume, transform, produce

    static List<ConsumerRecord<byte[], byte[]>> fill(Consumer<byte[], byte[]> consumer, Deque<ConsumerRecord<byte[], byte[]>> left, int wanted) {
        var taken = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        for (long deadline = System.nanoTime() + 10_000_000_000L; taken.size() < wanted; ) {
            if (left.isEmpty()) consumer.poll(Duration.ofMillis(100)).forEach(left::add);
            if (left.isEmpty() && System.nanoTime() > deadline) throw new CannotMeasure("no more input after " + DONE.get() + " transactions");
            while (taken.size() < wanted && !left.isEmpty()) taken.add(left.poll());
        }
        return taken;
    }

    static void loopOn(Consumer<byte[], byte[]> consumer, Producer<byte[], byte[]> producer, int records) {
        var left = new ArrayDeque<ConsumerRecord<byte[], byte[]>>();
        while (!finished) {
            var taken = fill(consumer, left, records);
            var next = new HashMap<TopicPartition, OffsetAndMetadata>();
            producer.beginTransaction();
            for (int i = 0; i < taken.size(); i++) {
                var record = taken.get(i);
                put(producer, i % partitions, upper(record.value()));
                next.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            commit(producer);
        }
    }

    static byte[] upper(byte[] value) {
        byte[] made = value.clone();
        for (int i = 0; i < made.length; i++) made[i] = (byte) Character.toUpperCase(made[i]);
        return made;
    }

    /** What is committed must be what was consumed: one more or less would be a duplicate or a hole. */
    static void mustHaveCommitted(Consumer<byte[], byte[]> consumer, String input, long expected) {
        var offsets = consumer.committed(new HashSet<>(all(input))).values();
        long sum = offsets.stream().filter(Objects::nonNull).mapToLong(OffsetAndMetadata::offset).sum();
        if (sum != expected) throw new CannotMeasure("offsets come to " + sum + " instead of " + expected);
    }

    static void loop(String input, int records) throws Exception {
        var consumer = consumer("read_committed", records);
        var looker = consumer("read_uncommitted", 1);
        var producer = transactional(0);
        long before = totalEnd(looker);
        consumer.subscribe(List.of(input));
        var thread = start(() -> loopOn(consumer, producer, records));
        while (DONE.get() == 0) Thread.sleep(1);
        String measured = watch();
        thread.join();
        mustHaveGrown(looker, before, growth(records));
        mustHaveCommitted(consumer, input, DONE.get() * records);
        printRate(measured);
    }

    public static void main(String[] args) {
        try {
            bootstrap = args[1];
            topic = args[2];
            warmSeconds = Double.parseDouble(args[3]);
            seconds = Double.parseDouble(args[4]);
            partitions = args.length > 5 ? Integer.parseInt(args[5]) : 1;
            mustSpeakGeneration2();
            if (args[0].equals("rate")) rate(Integer.parseInt(args[6]), Integer.parseInt(args[7]));
            else if (args[0].equals("delay")) delay();
            else loop(args[6], Integer.parseInt(args[7]));
        } catch (Throwable thrown) {
            fail(thrown);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
