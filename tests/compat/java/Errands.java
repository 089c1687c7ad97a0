import java.io.*;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * What else Kafka's Java clients can ask a node, behind a pipe of the same shape as that of Clients: an order is about one
 * kind of thing, and calls all that the admin client has for it. It uses only what the clients of 3.9 and 4.3 share; what one
 * of them alone has is found by its name.
 */
public class Errands {
    static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    static final int NODE = 1, NOBODY = 99;
    static String bootstrap;
    static Admin admin;

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);  // what the clients have to say of a refusal is no part of an answer
        bootstrap = args[0];
        admin = Admin.create(settings("request.timeout.ms=10000,default.api.timeout.ms=20000"));
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
        System.exit(0);
    }

    static void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "read" -> read(words[1], words[2], Integer.parseInt(words[3]), words[4]);
            case "groups" -> groups(words[1], words[2], new TopicPartition(words[3], 0));
            case "settings" -> settingsOf(new ConfigResource(ConfigResource.Type.TOPIC, words[1]));
            case "users" -> users();
            case "transactions" -> transactions(words[1], new TopicPartition(words[2], 0));
            case "replicas" -> replicas(new TopicPartition(words[1], 0));
            case "quorum" -> quorum();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    /** A member of a group reads so many records, stays for a second, so that heartbeats are due, commits and leaves. */
    static void read(String group, String topic, int count, String options) {
        var made = settings("group.id=" + group + ",auto.offset.reset=earliest,enable.auto.commit=false," + options);
        try (var consumer = new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            long begun = System.currentTimeMillis();
            int seen = 0;
            while (seen < count || System.currentTimeMillis() < begun + 1000) {
                if (System.currentTimeMillis() > begun + 30000) throw new IllegalStateException("read " + seen + " of " + count);
                seen += consumer.poll(Duration.ofMillis(100)).count();
            }
            consumer.commitSync();
            consumer.committed(consumer.assignment());
        }
    }

    /** Two groups without members, of either protocol. */
    static void groups(String classic, String modern, TopicPartition where) throws Exception {
        admin.listConsumerGroups().all().get();
        admin.describeConsumerGroups(List.of(classic, modern)).all().get();
        for (String group : List.of(classic, modern)) {
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            admin.alterConsumerGroupOffsets(group, Map.of(where, new OffsetAndMetadata(1))).all().get();
            admin.deleteConsumerGroupOffsets(group, Set.of(where)).all().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
        }
    }

    /** Kafka 4.0 took the old way to change settings from its admin client. */
    static void settingsOf(ConfigResource topic) throws Exception {
        try {
            Method old = Admin.class.getMethod("alterConfigs", Map.class);
            var wanted = Map.of(topic, new Config(List.of(new ConfigEntry("retention.ms", "7000000"))));
            ((AlterConfigsResult) old.invoke(admin, wanted)).all().get();
        } catch (NoSuchMethodException gone) {
            OUT.println("has no alterConfigs");
        }
        admin.listClientMetricsResources().all().get();
    }

    static void users() throws Exception {
        var entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, "somebody"));
        var much = new ClientQuotaAlteration.Op("producer_byte_rate", 1e9);
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(much)))).all().get();
        admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get();
        var how = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("somebody", how, "password"))).all().get();
        admin.describeUserScramCredentials().all().get();
    }

    /** There is an open transaction of this id. Its records of one partition are aborted by hand, and then all of it by fencing. */
    static void transactions(String id, TopicPartition where) throws Exception {
        admin.listTransactions().all().get();
        admin.describeTransactions(List.of(id)).all().get();
        var producers = admin.describeProducers(List.of(where)).partitionResult(where).get().activeProducers();
        var open = producers.stream().filter(each -> each.currentTransactionStartOffset().isPresent()).findFirst().orElseThrow();
        admin.abortTransaction(new AbortTransactionSpec(where, open.producerId(), (short) open.producerEpoch(), -1)).all().get();
        admin.fenceProducers(List.of(id)).all().get();
    }

    static void replicas(TopicPartition where) throws Exception {
        admin.electLeaders(ElectionType.PREFERRED, Set.of(where)).partitions().get();
        var stay = Optional.of(new NewPartitionReassignment(List.of(NODE)));
        admin.alterPartitionReassignments(Map.of(where, stay)).all().get();
        admin.listPartitionReassignments().reassignments().get();
        var replica = new TopicPartitionReplica(where.topic(), where.partition(), NODE);
        String directory = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir();
        admin.alterReplicaLogDirs(Map.of(replica, directory)).all().get();
    }

    /** What would change the cluster itself is asked in a way that has to be refused. */
    static void quorum() throws Exception {
        admin.describeFeatures().featureMetadata().get();
        var update = new FeatureUpdate((short) 2, FeatureUpdate.UpgradeType.UPGRADE);
        admin.updateFeatures(Map.of("transaction.version", update), new UpdateFeaturesOptions().validateOnly(true)).all().get();
        var voter = admin.describeMetadataQuorum().quorumInfo().get().voters().get(0);
        var endpoints = Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 9));
        refused(admin.addRaftVoter(voter.replicaId(), voter.replicaDirectoryId(), endpoints).all());
        refused(admin.removeRaftVoter(NOBODY, Uuid.randomUuid()).all());
        refused(admin.unregisterBroker(NOBODY).all());
    }

    static void refused(KafkaFuture<Void> answer) throws Exception {
        try {
            answer.get();
        } catch (ExecutionException refusal) {
            if (!(refusal.getCause() instanceof ApiException)) throw refusal;
            OUT.println("refused\t" + refusal.getCause().getClass().getSimpleName());
            return;
        }
        throw new IllegalStateException("it was not refused");
    }

    static Properties settings(String text) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        for (String pair : text.split(",")) if (!pair.isEmpty()) made.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        return made;
    }
}
