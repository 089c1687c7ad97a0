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
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Orders become enriched orders, exactly once: what is written and how far the input has been read are committed together, so a
 * crash at any moment leaves both or neither. BOOTSTRAP COUNT.
 */
public class TransactionalProducerExample {
    static final String GROUP = "order-enricher";

    public static void main(String[] args) {
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consumerSettings(args[0]));
             KafkaProducer<String, String> producer = new KafkaProducer<>(producerSettings(args[0]))) {
            producer.initTransactions();
            consumer.subscribe(List.of("orders"));
            int left = Integer.parseInt(args[1]);
            while (left > 0) {
                ConsumerRecords<String, String> orders = consumer.poll(Duration.ofMillis(100));
                if (!orders.isEmpty()) {
                    left -= enrich(orders, consumer, producer);
                }
            }
        }
    }

    /** How many orders are done with now. */
    static int enrich(ConsumerRecords<String, String> orders, KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer) {
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> order : orders) {
                producer.send(new ProducerRecord<>("enriched-orders", order.key(), order.value() + " (checked)"));
            }
            producer.sendOffsetsToTransaction(next(orders), consumer.groupMetadata());
            producer.commitTransaction();
            return orders.count();
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException fatal) {
            throw fatal; // another producer has our id, or we have no business here: nothing can be done but to go
        } catch (KafkaException abortable) {
            producer.abortTransaction();
            rewind(consumer);
            return 0;
        }
    }

    static Map<TopicPartition, OffsetAndMetadata> next(ConsumerRecords<String, String> orders) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : orders.partitions()) {
            List<ConsumerRecord<String, String>> records = orders.records(partition);
            offsets.put(partition, new OffsetAndMetadata(records.get(records.size() - 1).offset() + 1));
        }
        return offsets;
    }

    /** Back to where the last committed transaction ended. */
    static void rewind(KafkaConsumer<String, String> consumer) {
        consumer.committed(consumer.assignment()).forEach((partition, committed) -> {
            if (committed == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, committed.offset());
            }
        });
    }

    static Properties producerSettings(String bootstrap) {
        Properties props = new Properties();
        props.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        props.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class.getName());
        props.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class.getName());
        props.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, "order-enricher-1"); // which makes it idempotent too
        return props;
    }

    static Properties consumerSettings(String bootstrap) {
        Properties props = new Properties();
        props.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        props.put(ConsumerConfig.GROUP_ID_CONFIG, GROUP);
        props.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class.getName());
        props.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class.getName());
        props.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        props.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false); // offsets are the transaction's business
        props.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return props;
    }
}
