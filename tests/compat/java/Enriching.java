import java.time.Duration;
import java.util.*;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.state.*;

/**
 * A Kafka Streams application with exactly_once_v2: orders are joined with the names of their customers, and numbered for each
 * customer by a state store. BOOTSTRAP STATE-DIRECTORY; it runs until it is killed.
 */
public class Enriching {
    static class Numbering implements FixedKeyProcessor<String, String, String> {
        FixedKeyProcessorContext<String, String> context;
        KeyValueStore<String, Long> counts;

        public void init(FixedKeyProcessorContext<String, String> given) {
            context = given;
            counts = given.getStateStore("counts");
        }

        public void process(FixedKeyRecord<String, String> record) {
            long count = Optional.ofNullable(counts.get(record.key())).orElse(0L) + 1;
            counts.put(record.key(), count);
            context.forward(record.withValue(count + " " + record.value()));
        }
    }

    static Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("counts"), Serdes.String(), Serdes.Long()));
        KTable<String, String> customers = builder.table("customers");
        builder.<String, String>stream("orders")
            .join(customers, (order, name) -> order + " " + name)
            .processValues(Numbering::new, "counts")
            .to("enriched");
        return builder.build();
    }

    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            StreamsConfig.APPLICATION_ID_CONFIG, "enriching",
            StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0],
            StreamsConfig.STATE_DIR_CONFIG, args[1],
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100",
            StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class));
        settings.putAll(Map.of(
            StreamsConfig.mainConsumerPrefix("session.timeout.ms"), "3000",
            StreamsConfig.mainConsumerPrefix("heartbeat.interval.ms"), "300",
            StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest",
            StreamsConfig.consumerPrefix("fetch.max.wait.ms"), "100",
            "reconnect.backoff.max.ms", "200"));
        KafkaStreams streams = new KafkaStreams(topology(), settings);
        streams.setUncaughtExceptionHandler(thrown -> {
            System.out.println("failed " + thrown);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println(now));
        streams.start();
    }
}
