import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes each payment once, however often the network makes it try: BOOTSTRAP COUNT. */
public class IdempotentProducerExample {
    public static void main(String[] args) {
        Properties props = new Properties();
        props.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        props.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class.getName());
        props.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class.getName());
        props.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, true);
        props.put(ProducerConfig.ACKS_CONFIG, "all");
        props.put(ProducerConfig.RETRIES_CONFIG, Integer.MAX_VALUE);
        props.put(ProducerConfig.MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION, 5);

        try (KafkaProducer<String, String> producer = new KafkaProducer<>(props)) {
            for (int number = 0; number < Integer.parseInt(args[1]); number++) {
                ProducerRecord<String, String> record = new ProducerRecord<>("payments", "account-" + number % 3, "payment-" + number);
                producer.send(record, (metadata, exception) -> {
                    if (exception != null) {
                        System.err.println("not sent: " + exception.getMessage());
                    } else {
                        System.out.printf("%s went to partition %d, offset %d%n", record.value(), metadata.partition(), metadata.offset());
                    }
                });
            }
        }
    }
}
