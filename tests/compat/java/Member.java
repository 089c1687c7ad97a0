import java.io.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of groups, each on a thread of its own, behind one pipe: "start NAME TOPIC key=value,key=value", "stop NAME".
 * What they say is JSON, one line each: {"member": NAME, "owns": [...]}, {"member": NAME, "read": [[partition, offset], ...]},
 * {"member": NAME, "left": true}. A topic that begins with ^ is a regular expression, which the broker evaluates (KIP-848).
 */
public class Member implements Runnable {
    static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();
    final String name;
    final String topic;
    final Properties settings = new Properties();
    volatile boolean ended;

    Member(String name, String topic, String pairs) {
        this.name = name;
        this.topic = topic;
        settings.put("auto.offset.reset", "earliest");
        settings.put("auto.commit.interval.ms", "200");
        for (String pair : pairs.split(",")) settings.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
    }

    static synchronized void tell(String name, String said) {
        System.out.println("{\"member\": \"" + name + "\", " + said + "}");
        System.out.flush();
    }

    public void run() {
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (topic.startsWith("^")) consumer.subscribe(new SubscriptionPattern(topic.substring(1)));
            else consumer.subscribe(List.of(topic));
            String told = null;
            while (!ended) {
                var found = consumer.poll(Duration.ofMillis(100));
                String owns = consumer.assignment().stream().map(TopicPartition::partition).sorted().map(String::valueOf).collect(Collectors.joining(", "));
                if (!owns.equals(told)) {
                    told = owns;
                    tell(name, "\"owns\": [" + owns + "]");
                }
                if (!found.isEmpty()) {
                    StringJoiner read = new StringJoiner(", ");
                    found.forEach(record -> read.add("[" + record.partition() + ", " + record.offset() + "]"));
                    tell(name, "\"read\": [" + read + "]");
                }
            }
        } catch (Throwable thrown) {
            tell(name, "\"failed\": \"" + String.valueOf(thrown).replace('"', '\'').replace('\n', ' ') + "\"");
        }
        tell(name, "\"left\": true");
    }

    public static void main(String[] args) throws Exception {
        var orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = orders.readLine()) != null; ) {
            String[] words = line.split("\t", -1);
            if (words[0].equals("start")) {
                Member member = new Member(words[1], words[2], words[3]);
                MEMBERS.put(words[1], member);
                Thread thread = new Thread(member);
                thread.setDaemon(true);
                thread.start();
            } else {
                MEMBERS.get(words[1]).ended = true;
            }
        }
    }
}
