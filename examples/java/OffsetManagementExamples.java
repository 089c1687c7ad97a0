import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The ways to say how far a group has come, one after another over one topic, each in a group of its own: BOOTSTRAP COUNT. */
public class OffsetManagementExamples {
    static final String TOPIC = "events";
    static String bootstrap;
    static int count;

    public static void main(String[] args) {
        bootstrap = args[0];
        count = Integer.parseInt(args[1]);
        automatically();
        synchronously();
        asynchronously();
        recordByRecord();
        seeking();
    }

    static KafkaConsumer<String, String> consumer(String group, boolean automatic) {
        Properties props = new Properties();
        props.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        props.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        props.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class.getName());
        props.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class.getName());
        props.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        props.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, automatic);
        props.put(ConsumerConfig.AUTO_COMMIT_INTERVAL_MS_CONFIG, 1000);
        KafkaConsumer<String, String> made = new KafkaConsumer<>(props);
        made.subscribe(List.of(TOPIC));
        return made;
    }

    /** At most a second of work is repeated after a crash; `close` commits what was read. */
    static void automatically() {
        try (KafkaConsumer<String, String> consumer = consumer("automatic", true)) {
            for (int seen = 0; seen < count; ) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
        }
        System.out.println("automatic: committed when it was closed");
    }

    /** Nothing goes on before the broker has answered. */
    static void synchronously() {
        try (KafkaConsumer<String, String> consumer = consumer("synchronous", false)) {
            for (int seen = 0; seen < count; ) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
                consumer.commitSync();
            }
            System.out.println("synchronous: " + consumer.committed(consumer.assignment()).values().stream().mapToLong(OffsetAndMetadata::offset).sum());
        }
    }

    /** A failed commit is not tried again: a later one says more. The last one has no later one, and waits. */
    static void asynchronously() {
        try (KafkaConsumer<String, String> consumer = consumer("asynchronous", false)) {
            for (int seen = 0; seen < count; ) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
                consumer.commitAsync((offsets, exception) -> {
                    if (exception != null) {
                        System.err.println("not committed: " + offsets);
                    }
                });
            }
            consumer.commitSync();
        }
        System.out.println("asynchronous: committed before it was closed");
    }

    /** A crash repeats one record and no more. */
    static void recordByRecord() {
        try (KafkaConsumer<String, String> consumer = consumer("one-by-one", false)) {
            for (int seen = 0; seen < count; ) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, String> record : records) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    consumer.commitSync(Map.of(partition, new OffsetAndMetadata(record.offset() + 1, "done with " + record.value())));
                    seen++;
                }
            }
        }
        System.out.println("one by one: committed after each record");
    }

    /** Back to the beginning, and to a moment. */
    static void seeking() {
        try (KafkaConsumer<String, String> consumer = consumer("seeking", false)) {
            while (consumer.assignment().isEmpty()) {
                consumer.poll(Duration.ofMillis(100));
            }
            consumer.seekToBeginning(consumer.assignment());
            int seen = 0;
            while (seen < count) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
            Map<TopicPartition, Long> moment = new HashMap<>();
            consumer.assignment().forEach(partition -> moment.put(partition, 0L));
            for (Map.Entry<TopicPartition, OffsetAndTimestamp> found : consumer.offsetsForTimes(moment).entrySet()) {
                if (found.getValue() != null) {
                    consumer.seek(found.getKey(), found.getValue().offset());
                }
            }
            while (seen < 2 * count) {
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
            System.out.println("seeking: read " + seen);
        }
    }
}
