import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/**
 * Kafka's Java clients behind a pipe: one JVM, many orders. An order is a line of tab-separated words; the answer is any
 * number of lines and then "ok", or "error" with the exception's class and message. Bytes travel as Base64, null as "-".
 * It is compiled against whichever kafka-clients is on the class path, so it uses only what 3.9 and 4.3 share.
 */
public class Clients {
    static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    static final Base64.Encoder ENCODER = Base64.getEncoder();
    static final Base64.Decoder DECODER = Base64.getDecoder();
    static String bootstrap;
    static Admin admin;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        admin = Admin.create(settings("bootstrap.servers=" + bootstrap + ",request.timeout.ms=10000,default.api.timeout.ms=20000"));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            try {
                obey(line.split("\t", -1));
                OUT.println("ok");
            } catch (Throwable thrown) {
                Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                OUT.println("error\t" + cause.getClass().getSimpleName() + "\t" + String.valueOf(cause.getMessage()).replace('\n', ' '));
            }
            OUT.flush();
        }
        admin.close(Duration.ofSeconds(2));
    }

    static void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "produce" -> produce(words[1], Integer.parseInt(words[2]), Path.of(words[3]), words[4]);
            case "consume" -> consume(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), Integer.parseInt(words[4]), words[5]);
            case "offset" -> offset(new TopicPartition(words[1], Integer.parseInt(words[2])), words[3]);
            case "times" -> times(new TopicPartition(words[1], Integer.parseInt(words[2])), Long.parseLong(words[3]));
            case "create" -> admin.createTopics(List.of(new NewTopic(words[1], Optional.of(Integer.parseInt(words[2])), Optional.empty())
                .configs(words[3].isEmpty() ? Map.of() : strings(words[3])))).all().get();
            case "delete" -> admin.deleteTopics(List.of(words[1])).all().get();
            case "partitions" -> admin.createPartitions(Map.of(words[1], NewPartitions.increaseTo(Integer.parseInt(words[2])))).all().get();
            case "describe" -> describe(words[1]);
            case "list" -> new TreeSet<>(admin.listTopics().names().get()).forEach(OUT::println);
            case "configs" -> configs(words[1], words[2]);
            case "alter" -> alter(words[1], words[2], words[3], words[4]);
            case "deleterecords" -> OUT.println(admin.deleteRecords(Map.of(new TopicPartition(words[1], Integer.parseInt(words[2])),
                RecordsToDelete.beforeOffset(Long.parseLong(words[3])))).lowWatermarks().values().iterator().next().get().lowWatermark());
            case "cluster" -> OUT.println(admin.describeCluster().clusterId().get() + "\t" + admin.describeCluster().nodes().get().size()
                + "\t" + admin.describeCluster().controller().get().id());
            case "logdirs" -> logdirs();
            case "removemembers" -> removeMembers(words[1], words[2]);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    static void produce(String topic, int partition, Path file, String options) throws Exception {
        Properties settings = settings("bootstrap.servers=" + bootstrap + ",linger.ms=20,batch.size=200000,max.request.size=2000000,delivery.timeout.ms=30000,request.timeout.ms=20000," + options);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String line : Files.readAllLines(file)) {
                String[] parts = line.split("\t", -1);
                sent.add(producer.send(new ProducerRecord<>(topic, partition < 0 ? null : partition, Long.parseLong(parts[0]), bytes(parts[1]), bytes(parts[2]), headers(parts[3]))));
            }
            producer.flush();
            for (Future<RecordMetadata> one : sent) OUT.println(one.get().partition() + "\t" + one.get().offset());
        }
    }

    static void consume(String topic, int partition, long from, int count, String options) {
        Properties settings = settings("bootstrap.servers=" + bootstrap + ",auto.offset.reset=none,enable.auto.commit=false,request.timeout.ms=10000,default.api.timeout.ms=20000," + options);
        TopicPartition which = new TopicPartition(topic, partition);
        long deadline = System.currentTimeMillis() + 20000;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(which));
            consumer.seek(which, from);
            for (int seen = 0; seen < count && System.currentTimeMillis() < deadline; )
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (seen++ < count) OUT.println(text(record));
                }
        }
    }

    static String text(ConsumerRecord<byte[], byte[]> record) {
        String headers = StreamSupport.stream(record.headers().spliterator(), false).map(h -> h.key() + ":" + text(h.value())).collect(Collectors.joining(","));
        return record.offset() + "\t" + record.timestamp() + "\t" + text(record.key()) + "\t" + text(record.value()) + "\t" + headers;
    }

    static void offset(TopicPartition which, String spec) throws Exception {
        OffsetSpec asked = switch (spec) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max" -> OffsetSpec.maxTimestamp();
            case "earliest-local" -> OffsetSpec.earliestLocal();
            case "latest-tiered" -> OffsetSpec.latestTiered();
            default -> OffsetSpec.forTimestamp(Long.parseLong(spec));
        };
        var found = admin.listOffsets(Map.of(which, asked)).partitionResult(which).get();
        OUT.println(found.offset() + "\t" + found.timestamp());
    }

    static void times(TopicPartition which, long timestamp) {
        try (var consumer = new KafkaConsumer<>(settings("bootstrap.servers=" + bootstrap), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(which, timestamp)).get(which);
            OUT.println(consumer.beginningOffsets(List.of(which)).get(which) + "\t" + consumer.endOffsets(List.of(which)).get(which)
                + "\t" + (found == null ? "-\t-" : found.offset() + "\t" + found.timestamp()));
        }
    }

    static void describe(String topic) throws Exception {
        TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        for (TopicPartitionInfo p : found.partitions())
            OUT.println(p.partition() + "\t" + p.leader().id() + "\t" + p.replicas().size() + "\t" + p.isr().size());
    }

    static void configs(String kind, String name) throws Exception {
        ConfigResource which = new ConfigResource(ConfigResource.Type.valueOf(kind), name);
        for (ConfigEntry entry : admin.describeConfigs(List.of(which)).all().get().get(which).entries())
            OUT.println(entry.name() + "\t" + entry.value() + "\t" + entry.source() + "\t" + entry.isReadOnly() + "\t" + entry.isSensitive() + "\t" + entry.type());
    }

    static void alter(String topic, String operation, String name, String value) throws Exception {
        ConfigResource which = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.valueOf(operation));
        admin.incrementalAlterConfigs(Map.of(which, List.of(change))).all().get();
    }

    static void logdirs() throws Exception {
        for (var broker : admin.describeLogDirs(List.of(1)).allDescriptions().get().values())
            for (var directory : broker.values())
                for (var replica : directory.replicaInfos().entrySet())
                    OUT.println(replica.getKey() + "\t" + replica.getValue().size() + "\t" + replica.getValue().isFuture());
    }

    /** Those with these instance ids, with the fate of each; everybody when none is named. */
    static void removeMembers(String group, String instances) throws Exception {
        if (instances.isEmpty()) {
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
            return;
        }
        List<MemberToRemove> members = Arrays.stream(instances.split(",")).map(MemberToRemove::new).toList();
        var options = new RemoveMembersFromConsumerGroupOptions(members);
        options.reason("they will not come back");
        var result = admin.removeMembersFromConsumerGroup(group, options);
        for (MemberToRemove member : members) {
            String fate = "removed";
            try {
                result.memberResult(member).get();
            } catch (ExecutionException failed) {
                fate = failed.getCause().getClass().getSimpleName();
            }
            OUT.println(member.groupInstanceId() + "\t" + fate);
        }
    }

    static Properties settings(String text) {
        Properties made = new Properties();
        made.putAll(strings(text));
        return made;
    }

    static Map<String, String> strings(String text) {
        return Arrays.stream(text.split(",")).filter(s -> !s.isEmpty()).map(s -> s.split("=", 2)).collect(Collectors.toMap(p -> p[0], p -> p[1], (a, b) -> b));
    }

    static List<Header> headers(String text) {
        return Arrays.stream(text.split(",")).filter(s -> !s.isEmpty()).map(s -> s.split(":", 2)).map(p -> (Header) new RecordHeader(p[0], bytes(p[1]))).toList();
    }

    static byte[] bytes(String text) { return text.equals("-") ? null : DECODER.decode(text); }

    static String text(byte[] bytes) { return bytes == null ? "-" : ENCODER.encodeToString(bytes); }
}
